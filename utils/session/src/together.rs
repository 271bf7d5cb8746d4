//! Devices that a session uses together: work on one of them waits for work on the others, as in collective kernels.
//! They are held together: one account, in a page of its own, grants time on all of them, and each device of each
//! process has a slot there.
//!
//! A device's lease may end before its program has launched what another device already waits for. So collectives are
//! counted. A device that has launched fewer of them than another one, since none of the devices was last held, is
//! behind and may launch the difference. With stream gates, a launch does not count until the device has begun it.

use crate::layout::{PageLayout, TogetherDevice};
use crate::{Membership, Page, PageError, clock};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use limits::{GpuId, Limits};
use std::path::Path;

/// For how long (ns) a device counts as used together with others.
pub const LASTS_NS: u64 = 10_000_000_000;
/// Like [`LASTS_NS`], for a device of which that is only presumed.
const PRESUMED_NS: u64 = 1_000_000_000;
/// With stream gates, a batch has at most this many collectives, and ends with the same one on all devices. So devices
/// that are behind can begin exactly as many as others have.
pub const COLLECTIVES_OF_BATCH: u64 = 8;

impl TogetherDevice {
    fn counts_at(&self, now_ns: u64) -> bool {
        self.until_ns
            .load(Relaxed)
            .checked_sub(now_ns)
            .is_some_and(|left| (1..=LASTS_NS + clock::AHEAD_NS).contains(&left))
    }

    /// Collectives since none of the devices was last held.
    fn launched(&self) -> u64 {
        self.collectives.load(Acquire).wrapping_sub(self.collectives_before.load(Relaxed))
    }

    /// The position in its batch of the collective that comes `ahead` after those that have begun.
    fn place_in_batch(&self, ahead: u64) -> u64 {
        let number = self.collectives.load(Acquire).wrapping_add(ahead);
        number.wrapping_sub(self.batches_from.load(Relaxed).into()) % COLLECTIVES_OF_BATCH
    }
}

impl PageLayout {
    /// Whether this is the page of devices used together.
    pub(crate) fn is_of_several(&self) -> bool {
        self.devices[0].until_ns.load(Relaxed) != 0
    }

    /// The devices that are used together now.
    pub(crate) fn together_at(&self, now_ns: u64) -> impl Iterator<Item = &TogetherDevice> {
        self.devices.iter().filter(move |device| device.counts_at(now_ns))
    }

    /// Starts the counts anew while none of the devices is held. When all launched work is done, each device has begun
    /// as many collectives as the others. So if one has launched more since that was last so, not every collective
    /// involves all devices, and the counts do not tell which device waits for which.
    pub(crate) fn count_anew(&self, now_ns: u64) {
        let mut all = self.together_at(now_ns);
        let Some(first) = all.next() else { return };
        let (mut alone, mut left) = (true, first.left.load(Relaxed));
        let (mut differ, mut apart) = (false, false);
        for device in all {
            alone = false;
            left |= device.left.load(Relaxed);
            differ |= device.launched() != first.launched();
            apart |= device.place_in_batch(0) != first.place_in_batch(0);
        }
        // A single device may have begun collectives that another one has yet to report.
        if alone || left != 0 {
            return;
        }
        self.numbers_differ.store(u64::from(differ), Relaxed);
        // The counts may have started differently; the collectives begun until now are the same.
        apart &= !differ;
        for device in &self.devices {
            let begun = device.collectives.load(Acquire);
            device.collectives_before.store(begun, Relaxed);
            if apart {
                device.batches_from.store((begun % COLLECTIVES_OF_BATCH) as u32, Relaxed);
            }
        }
    }
}

/// A device's entry in the page of devices used together, for one process.
#[derive(Debug)]
pub struct Together {
    place: usize,
}

impl Together {
    /// Takes the device's entry.
    ///
    /// # Errors
    /// As [`Page::open`]; [`PageError::Full`] if there are too many devices.
    pub fn join(
        dir: &Path,
        device: GpuId,
        limits: &Limits,
    ) -> Result<(Self, Membership), PageError> {
        let membership = Membership::claim(Page::open_of_all(dir, limits)?)?;
        let uuid = words(device);
        let opened = membership.open()?;
        let devices = &membership.look()?.devices;
        let has = |device: &TogetherDevice, [high, low]: [u64; 2]| {
            device.uuid[0].load(Relaxed) == high && device.uuid[1].load(Relaxed) == low
        };
        let known = devices.iter().position(|device| has(device, uuid));
        let Some(place) = known.or_else(|| devices.iter().position(|device| has(device, [0; 2])))
        else {
            drop(opened);
            return Err(PageError::Full { path: dir.to_owned() });
        };
        if known.is_none() {
            devices[place].uuid[0].store(uuid[0], Relaxed);
            devices[place].uuid[1].store(uuid[1], Relaxed);
        }
        drop(opened);
        Ok((Self { place }, membership))
    }

    /// Whether a process of the session has ever used a device together with others.
    #[must_use]
    pub fn may_join(dir: &Path) -> bool {
        Page::has_of_all(dir)
    }

    /// Presumes for a while that this device is used together with the session's other ones: its program may be waiting
    /// for its turn before it could launch its first collective. Returns whether other devices are used together.
    #[must_use]
    pub fn may_be_used(&self, page: &PageLayout, share_ppm: u32) -> bool {
        let (now, own) = (clock::now_ns(), &page.devices[self.place]);
        let others = page.together_at(now).any(|device| !core::ptr::eq(device, own));
        if others {
            own.share_ppm.store(share_ppm, Relaxed);
            own.until_ns.fetch_max(now.saturating_add(PRESUMED_NS), Release);
        }
        others
    }

    /// Records that the device is used together with others; `share_ppm`: its share, in millionths.
    pub fn is_used(&self, page: &PageLayout, share_ppm: u32) {
        let (now, own) = (clock::now_ns(), &page.devices[self.place]);
        own.share_ppm.store(share_ppm, Relaxed);
        own.until_ns.store(now.saturating_add(LASTS_NS), Release);
    }

    /// Whether the device is used together with another one now.
    #[must_use]
    pub fn holds(&self, page: &PageLayout) -> bool {
        let now = clock::now_ns();
        page.devices[self.place].counts_at(now) && page.together_at(now).nth(1).is_some()
    }

    /// Counts `more` collectives that need no gate any more; negative if a launch has failed.
    pub fn collectives_begin(&self, page: &PageLayout, more: i64) {
        page.devices[self.place].collectives.fetch_add(more.cast_unsigned(), AcqRel);
    }

    /// Whether a batch ends with the collective that comes `ahead` after those that have begun. True if the counts are
    /// unreliable.
    #[must_use]
    pub fn ends_batch(&self, page: &PageLayout, ahead: u64) -> bool {
        !self.numbers_tell(page) || page.devices[self.place].place_in_batch(ahead) == 0
    }

    /// Records the end of a lease of the device. `stuck`: a collective that it has begun waits for another device. If
    /// the counts then say that all devices have begun as many, they are wrong: limits that begin or end while a
    /// program runs leave some uncounted.
    pub fn ends(&self, page: &PageLayout, stuck: bool) {
        page.devices[self.place].left.store(stuck.into(), Relaxed);
        if stuck && !self.is_ahead(page) {
            page.numbers_differ.store(1, Relaxed);
        }
    }

    /// Records until when more collectives may begin in the device's streams.
    pub fn is_open(&self, page: &PageLayout, until_ns: u64) {
        page.devices[self.place].open_until_ns.store(until_ns, Release);
    }

    /// Records that no more collectives begin in its streams, and all that have begun are counted.
    pub fn is_closed(&self, page: &PageLayout) {
        self.is_open(page, 0);
    }

    /// Whether more collectives may begin in another device's streams. Counts read afterwards include those that have.
    #[must_use]
    pub fn others_are_open(&self, page: &PageLayout) -> bool {
        let (now, own) = (clock::now_ns(), &page.devices[self.place]);
        let is_open = |device: &TogetherDevice| device.open_until_ns.load(Acquire) > now;
        page.together_at(now).any(|device| !core::ptr::eq(device, own) && is_open(device))
    }

    /// Whether the counts of collectives tell which device waits for which.
    #[must_use]
    pub fn numbers_tell(&self, page: &PageLayout) -> bool {
        page.numbers_differ.load(Relaxed) == 0
    }

    /// Whether another device has launched more collectives, and may wait for this one's.
    #[must_use]
    pub fn is_behind(&self, page: &PageLayout) -> bool {
        if !self.numbers_tell(page) {
            return false;
        }
        let own = page.devices[self.place].launched();
        // Another build or a damaged page could say this for ever; callers bound it.
        page.together_at(clock::now_ns()).any(|device| device.launched() > own)
    }

    /// Whether this device has launched more collectives than another one.
    #[must_use]
    pub fn is_ahead(&self, page: &PageLayout) -> bool {
        if !self.numbers_tell(page) {
            return false;
        }
        let own = page.devices[self.place].launched();
        page.together_at(clock::now_ns()).any(|device| device.launched() < own)
    }

    /// Records until when work on this device may wait for another device's launches: by those that are behind, or by
    /// all if the counts are unreliable. Returns the call.
    pub fn call_others(&self, page: &PageLayout, until_ns: u64) -> u64 {
        let all = u64::from(!self.is_ahead(page));
        let call = until_ns & !1 | all;
        page.called_until_ns.store(call, Release);
        call
    }

    /// Ends a call after its work is done, unless another device has called since.
    pub fn call_is_over(page: &PageLayout, call: u64) {
        let _ = page.called_until_ns.compare_exchange(call, 0, AcqRel, Relaxed);
    }

    /// Whether work on another device may wait for launches of this one's program.
    #[must_use]
    pub fn is_called(&self, page: &PageLayout, now_ns: u64) -> bool {
        let until = clock::at_most(page.called_until_ns.load(Acquire), now_ns);
        until > now_ns && (until & 1 == 1 || self.is_behind(page))
    }
}

/// The UUID as two words.
fn words(device: GpuId) -> [u64; 2] {
    let bits = u128::from_be_bytes(device.bytes());
    [(bits >> 64) as u64, bits as u64]
}
