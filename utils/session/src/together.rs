//! Devices that a session uses together: work on one of them waits for work on the others, as collective
//! kernels do. They are held together: one account, in a page of its own, grants the time of all of them,
//! and each device of each process has a slot there.
//!
//! A lease of one device may end before its program has launched what another device is waiting for
//! already. So collectives are counted. A device that has launched fewer of them than another one, since none of
//! the devices was held last, is behind and may launch that many more. Where streams wait for the gate, a launch says
//! nothing yet: there it counts once the device has begun it.

use crate::layout::{PageLayout, TogetherDevice};
use crate::{Membership, Page, PageError, clock};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use limits::{GpuId, Limits};
use std::path::Path;

/// For how long a device that was used together with others is taken to be so.
pub const LASTS_NS: u64 = 10_000_000_000;
/// The same for one of which that is only presumed.
const PRESUMED_NS: u64 = 1_000_000_000;
/// Where streams wait for the gate, a batch has so many collectives at most, and the last of one is the same for all
/// devices. So those that are behind can begin as many as others have, and no more.
pub const COLLECTIVES_OF_BATCH: u64 = 8;

impl TogetherDevice {
    fn counts_at(&self, now_ns: u64) -> bool {
        self.until_ns
            .load(Relaxed)
            .checked_sub(now_ns)
            .is_some_and(|left| (1..=LASTS_NS + clock::AHEAD_NS).contains(&left))
    }

    /// Collectives since none of the devices was held last.
    fn launched(&self) -> u64 {
        self.collectives.load(Acquire).wrapping_sub(self.collectives_before.load(Relaxed))
    }

    /// Which of its batch the collective is that comes so many after those that have begun.
    fn place_in_batch(&self, ahead: u64) -> u64 {
        let number = self.collectives.load(Acquire).wrapping_add(ahead);
        number.wrapping_sub(self.batches_from.load(Relaxed).into()) % COLLECTIVES_OF_BATCH
    }
}

impl PageLayout {
    /// Whether it is the page of devices that are used together.
    pub(crate) fn is_of_several(&self) -> bool {
        self.devices[0].until_ns.load(Relaxed) != 0
    }

    /// The devices that are used together now.
    pub(crate) fn together_at(&self, now_ns: u64) -> impl Iterator<Item = &TogetherDevice> {
        self.devices.iter().filter(move |device| device.counts_at(now_ns))
    }

    /// None of the devices is held. Where all that was launched is done, each has begun as many collectives as the others.
    /// So if one has launched more of them since that was last so, then not every collective is one of all devices, and the
    /// numbers do not tell who waits for whom.
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
        // One alone may have begun what another has yet to say.
        if alone || left != 0 {
            return;
        }
        self.numbers_differ.store(u64::from(differ), Relaxed);
        // Where each began to count may differ. What they have begun now is the same.
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

/// A device's part in what a session uses together, in one process.
#[derive(Debug)]
pub struct Together {
    place: usize,
}

impl Together {
    /// Takes the device's place in the page of all.
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

    /// Other devices of the session are used together, and this one may be one of them: its program may wait for its
    /// turn before it could launch its first collective. Taken to be so for a while. Returns whether it is.
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

    /// The device is used together with others; its share, in millionths.
    pub fn is_used(&self, page: &PageLayout, share_ppm: u32) {
        let (now, own) = (clock::now_ns(), &page.devices[self.place]);
        own.share_ppm.store(share_ppm, Relaxed);
        own.until_ns.store(now.saturating_add(LASTS_NS), Release);
    }

    /// Whether the device is used together with another one.
    #[must_use]
    pub fn holds(&self, page: &PageLayout) -> bool {
        let now = clock::now_ns();
        page.devices[self.place].counts_at(now) && page.together_at(now).nth(1).is_some()
    }

    /// The device does so many more collectives without waiting for a gate. Fewer than none: a launch has failed.
    pub fn collectives_begin(&self, page: &PageLayout, more: i64) {
        page.devices[self.place].collectives.fetch_add(more.cast_unsigned(), AcqRel);
    }

    /// Whether a batch ends with the collective that comes so many after those that have begun. Where the numbers do not
    /// tell, each has one.
    #[must_use]
    pub fn ends_batch(&self, page: &PageLayout, ahead: u64) -> bool {
        !self.numbers_tell(page) || page.devices[self.place].place_in_batch(ahead) == 0
    }

    /// A lease of the device ends. `stuck`: a collective that it has begun stands still, and waits for another device. If
    /// the numbers say that each has begun as many, they are wrong: limits that begin or end while a program runs leave
    /// some uncounted.
    pub fn ends(&self, page: &PageLayout, stuck: bool) {
        page.devices[self.place].left.store(stuck.into(), Relaxed);
        if stuck && !self.is_ahead(page) {
            page.numbers_differ.store(1, Relaxed);
        }
    }

    /// Until some moment more of them may begin in the device's streams.
    pub fn is_open(&self, page: &PageLayout, until_ns: u64) {
        page.devices[self.place].open_until_ns.store(until_ns, Release);
    }

    /// No more begin in its streams, and all that have are told.
    pub fn is_closed(&self, page: &PageLayout) {
        self.is_open(page, 0);
    }

    /// Whether more may begin in the streams of another device. What is asked after that counts what has.
    #[must_use]
    pub fn others_are_open(&self, page: &PageLayout) -> bool {
        let (now, own) = (clock::now_ns(), &page.devices[self.place]);
        let is_open = |device: &TogetherDevice| device.open_until_ns.load(Acquire) > now;
        page.together_at(now).any(|device| !core::ptr::eq(device, own) && is_open(device))
    }

    /// Whether the numbers of collectives tell who waits for whom.
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
        // What another build or a damaged page says is no reason to go on for ever: callers bound it.
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

    /// Work on the device stands still, and may wait for what another one is to launch: until then those may
    /// that are behind, or all, where the numbers do not tell. Returns the call.
    pub fn call_others(&self, page: &PageLayout, until_ns: u64) -> u64 {
        let all = u64::from(!self.is_ahead(page));
        let call = until_ns & !1 | all;
        page.called_until_ns.store(call, Release);
        call
    }

    /// The work that stood still is done. Another device may have called since.
    pub fn call_is_over(page: &PageLayout, call: u64) {
        let _ = page.called_until_ns.compare_exchange(call, 0, AcqRel, Relaxed);
    }

    /// Whether work on another device stands still, and may wait for what this one's program launches.
    #[must_use]
    pub fn is_called(&self, page: &PageLayout, now_ns: u64) -> bool {
        let until = clock::at_most(page.called_until_ns.load(Acquire), now_ns);
        until > now_ns && (until & 1 == 1 || self.is_behind(page))
    }
}

/// The identity as two words.
fn words(device: GpuId) -> [u64; 2] {
    let bits = u128::from_be_bytes(device.bytes());
    [(bits >> 64) as u64, bits as u64]
}
