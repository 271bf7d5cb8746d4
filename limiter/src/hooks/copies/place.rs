//! Tells whether the memory at a unified address is on the host.

use crate::driver_calls;
use crate::driver_calls::undisturbing;
use core::ffi::{c_uint, c_void};
use driver::copy::MEMORY_HOST;
use driver::cuda::{CuResult, DevicePtr, POINTER_IS_MANAGED, POINTER_MEMORY_TYPE};

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` of an address that the driver does not know.
const UNKNOWN: c_uint = 0;

/// Whether all addresses are on the host. Stops at the first one that is not.
pub(super) fn are_on_host<const N: usize>(addresses: [DevicePtr; N]) -> bool {
    undisturbing(|| addresses.into_iter().all(is_on_host))
}

fn is_on_host(address: DevicePtr) -> bool {
    // `managed` is wider than any boolean that the driver may write.
    let (mut kind, mut managed) = (UNKNOWN, 0_u64);
    let mut attributes = [POINTER_MEMORY_TYPE, POINTER_IS_MANAGED];
    let mut values = [(&raw mut kind).cast::<c_void>(), (&raw mut managed).cast()];
    let count = attributes.len() as c_uint;
    match driver_calls::pointer_attributes(
        count,
        attributes.as_mut_ptr(),
        values.as_mut_ptr(),
        address,
    ) {
        CuResult::SUCCESS => is_host(kind, managed != 0),
        // Memory that was neither allocated by the driver nor registered with it is pageable host memory.
        CuResult::INVALID_VALUE => true,
        _ => false,
    }
}

/// Managed memory counts as device memory: it may be there, and the device moves it.
const fn is_host(kind: c_uint, managed: bool) -> bool {
    matches!(kind, UNKNOWN | MEMORY_HOST) && !managed
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;
    use driver::copy::MEMORY_DEVICE;

    #[test]
    fn pageable_and_pinned_memory_is_the_hosts_and_no_other() {
        assert!(is_host(UNKNOWN, false) && is_host(MEMORY_HOST, false));
        assert!(!is_host(MEMORY_DEVICE, false));
        assert!(!is_host(MEMORY_HOST, true) && !is_host(MEMORY_DEVICE, true));
    }

    #[test]
    fn what_cannot_be_asked_about_counts_as_the_devices() {
        assert!(!are_on_host([ptr::from_ref(&UNKNOWN).addr() as DevicePtr]));
    }
}
