//! The code images given to the driver, by the module or library handle that unloads them.

use super::device::DeviceMemory;
use super::headroom::{dropped, fill, given};
use crate::driver_calls;
use driver::cuda::CuResult;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Image {
    device: &'static DeviceMemory,
    /// The context with which the image ends; 0 for libraries, which outlive contexts.
    context: usize,
    bytes: u64,
}

/// Images by handle of their module or library.
#[derive(Default)]
pub(crate) struct Images(Mutex<HashMap<usize, Image>>);

/// What an image is loaded as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// A module, in the current context.
    Module,
    /// A library, for every context that uses it.
    Library,
}

impl Images {
    fn images(&self) -> MutexGuard<'_, HashMap<usize, Image>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call that gives the driver an image of `bytes` bytes; `handle` is evaluated after success. `make_room`
    /// makes pools give back unused memory if the code does not fit.
    pub(super) fn load(
        &self,
        device: &'static DeviceMemory,
        (bytes, loaded_as): (u64, Loaded),
        make_room: impl FnOnce(),
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> usize,
    ) -> CuResult {
        given(device, bytes);
        if !fill(device) {
            let _changing = device.shared.changes.begin();
            make_room();
            fill(device);
        }
        let result = call();
        let context =
            if loaded_as == Loaded::Library { 0 } else { driver_calls::current_context() };
        if result.is_ok() {
            // Another image with this handle is gone.
            let gone = self.images().insert(handle(), Image { device, context, bytes });
            if let Some(gone) = gone {
                dropped(gone.device, gone.bytes);
            }
        } else {
            dropped(device, bytes);
            fill(device);
        }
        result
    }

    /// Runs a call that unloads a module or a library.
    pub(crate) fn unload(&self, handle: usize, call: impl FnOnce() -> CuResult) -> CuResult {
        // Forget the image before the call: another thread may get the same handle.
        let image = self.images().remove(&handle);
        let result = call();
        match image {
            Some(image) if result.is_ok() => {
                dropped(image.device, image.bytes);
                fill(image.device);
            }
            Some(image) => match self.images().entry(handle) {
                Entry::Vacant(place) => {
                    place.insert(image);
                }
                Entry::Occupied(_) => dropped(image.device, image.bytes),
            },
            None => {}
        }
        result
    }

    /// Forgets the modules of a context that has ended.
    pub(super) fn context_ended(&self, device: &DeviceMemory, context: usize) {
        self.images().retain(|_, image| {
            let stays = image.context == 0 || image.context != context;
            if !stays {
                dropped(image.device, image.bytes);
            }
            stays
        });
        fill(device);
    }
}
