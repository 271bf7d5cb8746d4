//! The size of a code image, from its header, without reading all of it. The module hooks use it for the headroom.

use core::ffi::{CStr, c_char, c_void};
use core::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Upper bound for the size that a damaged image may claim, in bytes.
const MOST: u64 = 4 << 30;

/// The CUDA runtime's wrapper around images (`__fatBinC_Wrapper_t`).
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const c_void,
}

/// Header of images for several architectures.
#[repr(C)]
struct FatBinary {
    magic: u32,
    version: u16,
    header_bytes: u16,
    bytes: u64,
}

/// Header of an image for one architecture: a 64-bit ELF file.
#[repr(C)]
struct Elf {
    identity: [u8; 16],
    kind: u16,
    machine: u16,
    version: u32,
    entry: u64,
    segments_at: u64,
    sections_at: u64,
    flags: u32,
    header_bytes: u16,
    segment_bytes: u16,
    segments: u16,
    section_bytes: u16,
    sections: u16,
}

const WRAPPER: u32 = 0x4662_43b1;
const FAT_BINARY: u32 = 0xba55_ed50;
const ELF: [u8; 4] = *b"\x7fELF";

/// Bytes of an image in memory; 0 if the driver will refuse it.
///
/// # Safety
/// Null, or the address of an image as `cuModuleLoadData` takes it.
pub(super) unsafe fn bytes(image: *const c_void) -> u64 {
    // SAFETY: as promised by the caller.
    unsafe { inner(image, true) }.min(MOST)
}

/// # Safety
/// As for [`bytes`]. `wrapped`: whether the image may be a wrapper around another.
unsafe fn inner(image: *const c_void, wrapped: bool) -> u64 {
    if image.is_null() {
        return 0;
    }
    // SAFETY: an image has a first byte. Each further byte is read only if the bytes before it begin a header
    // of at least that length, and are not the end of a text.
    unsafe {
        if begins(image, WRAPPER.to_le_bytes()) && wrapped {
            inner(image.cast::<Wrapper>().read_unaligned().data, false)
        } else if begins(image, FAT_BINARY.to_le_bytes()) {
            let header = image.cast::<FatBinary>().read_unaligned();
            header.bytes.saturating_add(header.header_bytes.into())
        } else if begins(image, ELF) {
            of_elf(&image.cast::<Elf>().read_unaligned())
        } else {
            // PTX text: finding its end takes much less time than compiling it.
            CStr::from_ptr(image.cast::<c_char>()).count_bytes() as u64
        }
    }
}

/// Whether an image begins with these bytes.
///
/// # Safety
/// The image has a first byte, and another one after each byte that matches.
unsafe fn begins(image: *const c_void, with: [u8; 4]) -> bool {
    let first = image.cast::<u8>();
    // SAFETY: as promised by the caller; `all` ends at the first byte that does not match.
    with.iter().enumerate().all(|(at, &byte)| unsafe { first.add(at).read() } == byte)
}

/// Bytes of an ELF file, in which the tables of sections and segments come last.
fn of_elf(header: &Elf) -> u64 {
    let end =
        |at: u64, count: u16, bytes: u16| at.saturating_add(u64::from(count) * u64::from(bytes));
    end(header.sections_at, header.sections, header.section_bytes).max(end(
        header.segments_at,
        header.segments,
        header.segment_bytes,
    ))
}

/// Bytes of an image file; 0 if there is none.
///
/// # Safety
/// Null, or a file's name that ends with a zero.
pub(super) unsafe fn file_bytes(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: as promised by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    std::fs::metadata(path).map_or(0, |file| file.len()).min(MOST)
}

const _: () = {
    assert!(offset_of!(Wrapper, data) == 8);
    assert!(offset_of!(FatBinary, bytes) == 8);
    assert!(offset_of!(Elf, sections_at) == 40 && offset_of!(Elf, sections) == 60);
};

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    fn of<T>(image: &T) -> u64 {
        // SAFETY: each test hands in an image, or what looks like one for as long as it is read.
        unsafe { bytes(ptr::from_ref(image).cast()) }
    }

    #[test]
    fn headers_say_how_long_images_are() {
        let fat = FatBinary { magic: FAT_BINARY, version: 1, header_bytes: 16, bytes: 1000 };
        assert_eq!(of(&fat), 1016);
        let data = ptr::from_ref(&fat).cast();
        assert_eq!(of(&Wrapper { magic: WRAPPER, version: 1, data }), 1016);
        let mut elf = [0_u8; 64];
        elf[..4].copy_from_slice(&ELF);
        // Sections at 5000: three of 64 bytes; segments at 6000: two of 56.
        elf[40..42].copy_from_slice(&5000_u16.to_le_bytes());
        elf[58..62].copy_from_slice(&[64, 0, 3, 0]);
        assert_eq!(of(&elf), 5192);
        elf[32..34].copy_from_slice(&6000_u16.to_le_bytes());
        elf[54..58].copy_from_slice(&[56, 0, 2, 0]);
        assert_eq!(of(&elf), 6112);
        assert_eq!(of(b".version 7.0\n.target sm_70\0"), 26);
    }

    #[test]
    fn what_is_no_image_has_no_size_to_speak_of() {
        assert_eq!(of(b"\0"), 0);
        assert_eq!(of(b"\x7fE\0"), 2);
        let huge = FatBinary { magic: FAT_BINARY, version: 1, header_bytes: 16, bytes: u64::MAX };
        assert_eq!(of(&huge), MOST);
        let nothing = Wrapper { magic: WRAPPER, version: 1, data: ptr::null() };
        assert_eq!(of(&nothing), 0);
        // A wrapper within a wrapper is not followed.
        let wrapper = Wrapper { magic: WRAPPER, version: 0, data: ptr::from_ref(&nothing).cast() };
        assert_eq!(of(&wrapper), 5);
        // SAFETY: null, and names that end with a zero.
        unsafe {
            assert_eq!(bytes(ptr::null()), 0);
            assert_eq!(file_bytes(ptr::null()), 0);
            assert_eq!(file_bytes(c"/no/such/file".as_ptr()), 0);
            assert!(file_bytes(c"/proc/self/exe".as_ptr()) > 1 << 16);
        }
    }
}
