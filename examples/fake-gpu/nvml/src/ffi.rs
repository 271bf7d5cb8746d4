//! Pointers from C callers, who vouch for their validity. A null pointer gives an error code.

use core::ffi::{CStr, c_char, c_uint};

use driver::nvml::NvmlReturn;

/// A result inside the library.
pub(crate) type Api<T = ()> = Result<T, NvmlReturn>;

/// Turns a result into NVML's return code.
pub(crate) fn api(body: impl FnOnce() -> Api) -> NvmlReturn {
    match body() {
        Ok(()) => NvmlReturn::SUCCESS,
        Err(code) => code,
    }
}

/// An output pointer.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// A pointer from a caller's structure.
    pub(crate) const fn new(to: *mut T) -> Self {
        Self(to)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the value; null is an invalid argument.
    pub(crate) fn put(self, value: T) -> Api {
        self.put_at(0, value)
    }

    /// Writes element `index` of an array.
    pub(crate) fn put_at(self, index: usize, value: T) -> Api {
        if self.0.is_null() {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and NVML's caller vouches for the memory (and for an array of the
        // length that it states).
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }
}

impl<T: Copy> Out<T> {
    /// Reads the caller's value.
    pub(crate) fn get(self) -> Api<T> {
        if self.0.is_null() {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and NVML's caller vouches for it.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A C string argument.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn string(&self) -> Api<String> {
        if self.0.is_null() {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and NVML's caller vouches for a terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| NvmlReturn::INVALID_ARGUMENT)
    }
}

/// Writes a C string into a caller's buffer; `INSUFFICIENT_SIZE` if the buffer is too short.
pub(crate) fn put_text(to: Out<c_char>, length: c_uint, text: &str) -> Api {
    if to.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    if (length as usize) <= text.len() {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    for (index, &byte) in text.as_bytes().iter().enumerate() {
        to.put_at(index, byte as c_char)?;
    }
    to.put_at(text.len(), 0)
}
