//! Pointers from C callers, who vouch for their validity. A null pointer gives an error code. All accesses through such
//! pointers are here.

use core::ffi::{CStr, c_char, c_void};

use driver::cuda::CuResult;

/// A result inside the driver.
pub(crate) type Api<T = ()> = Result<T, CuResult>;

/// Turns a result into the caller's result code.
pub(crate) fn api(body: impl FnOnce() -> Api) -> CuResult {
    match body() {
        Ok(()) => CuResult::SUCCESS,
        Err(code) => code,
    }
}

/// Fails with `code` unless `condition` holds.
pub(crate) fn ensure(condition: bool, code: CuResult) -> Api {
    if condition { Ok(()) } else { Err(code) }
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
    /// Fails for null.
    pub(crate) fn required(self) -> Api<Self> {
        ensure(!self.0.is_null(), CuResult::INVALID_VALUE)?;
        Ok(self)
    }

    /// Writes unless null.
    pub(crate) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the driver API vouches for a pointer that is not null.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes element `index` unless null.
    pub(crate) fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the driver API vouches for an array of the length it states.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn null() -> Self {
        Self(core::ptr::null_mut())
    }

    /// The same pointer with another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// Reads the caller's value.
    pub(crate) fn get(self) -> Api<T> {
        self.required()?;
        // SAFETY: not null, and the caller of the driver API vouches for it.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// An input pointer.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn from_address(address: u64) -> Self {
        Self(address as *const T)
    }
}

impl<T: Copy> In<T> {
    /// Reads the value; null is an invalid value.
    pub(crate) fn get(self) -> Api<T> {
        self.at(0)
    }

    /// Reads element `index` of an array.
    pub(crate) fn at(self, index: usize) -> Api<T> {
        ensure(!self.0.is_null(), CuResult::INVALID_VALUE)?;
        // SAFETY: not null, and the caller of the driver API vouches for it.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Reads an array.
    pub(crate) fn list(self, count: usize) -> Api<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }
}

/// A C string argument.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The bytes without the final NUL; null is an invalid value.
    pub(crate) fn bytes(self) -> Api<Vec<u8>> {
        ensure(!self.0.is_null(), CuResult::INVALID_VALUE)?;
        // SAFETY: not null, and the caller of the driver API vouches for a terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes().to_vec())
    }

    pub(crate) fn string(self) -> Api<String> {
        String::from_utf8(self.bytes()?).map_err(|_| CuResult::INVALID_VALUE)
    }
}

/// Writes a C string into a caller's buffer of `length` bytes, truncated if needed.
pub(crate) fn put_text(to: Out<c_char>, length: i32, text: &str) -> Api {
    let room = usize::try_from(length).map_err(|_| CuResult::INVALID_VALUE)?;
    ensure(room > 0, CuResult::INVALID_VALUE)?;
    to.required()?;
    let cut = text.len().min(room - 1);
    for (index, &byte) in text.as_bytes()[..cut].iter().enumerate() {
        to.set_at(index, byte as c_char);
    }
    to.set_at(cut, 0);
    Ok(())
}

/// A handle for a caller: an opaque number that is never dereferenced.
pub(crate) fn handle(value: u64) -> *mut c_void {
    value as *mut c_void
}
