//! Utilization as NVML reports it: in fixed periods of a sixth of a second.

use crate::layout::{SAMPLE_NS, SAMPLES, Sample, State};

/// A process's utilization in one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessSample {
    /// Process id.
    pub pid: u32,
    /// End of the period (`CLOCK_MONOTONIC`, nanoseconds).
    pub end_ns: u64,
    /// Percent of the period in which its kernels ran, rounded up.
    pub percent: u32,
}

fn percent(busy: u64) -> u32 {
    (busy.min(SAMPLE_NS) * 100).div_ceil(SAMPLE_NS) as u32
}

fn add(samples: &mut [Sample; SAMPLES], mut from: u64, to: u64) {
    while from < to {
        let period = from / SAMPLE_NS;
        let end = to.min((period + 1) * SAMPLE_NS);
        let sample = &mut samples[(period % SAMPLES as u64) as usize];
        if sample.period != period {
            *sample = Sample { period, busy: 0 };
        }
        sample.busy += end - from;
        from = end;
    }
}

fn busy_in(samples: &[Sample; SAMPLES], period: u64) -> u64 {
    let sample = &samples[(period % SAMPLES as u64) as usize];
    if sample.period == period { sample.busy } else { 0 }
}

impl State {
    pub(crate) fn count_busy(&mut self, device: usize, process: u32, from: u64, to: u64) {
        add(&mut self.devices[device].samples, from, to);
        add(&mut self.processes[process as usize].clients[device].samples, from, to);
    }

    /// Time in which work held a device since the node was created, in nanoseconds.
    #[must_use]
    pub fn worked_ns(&self, device: u32) -> u64 {
        self.devices[device as usize].worked_ns
    }

    /// Like [`State::worked_ns`], for one living process; 0 for any other.
    #[must_use]
    pub fn worked_ns_by(&self, device: u32, pid: u32) -> u64 {
        let mut of =
            self.processes.iter().filter(|process| process.state == 1 && process.pid == pid);
        of.next().map_or(0, |process| process.clients[device as usize].worked_ns)
    }

    /// Percent of the last full period in which a kernel ran.
    #[must_use]
    pub fn utilization(&self, device: u32) -> u32 {
        match (self.now / SAMPLE_NS).checked_sub(1) {
            Some(period) => percent(busy_in(&self.devices[device as usize].samples, period)),
            None => 0,
        }
    }

    /// The full periods after `since_ns` in which a process's kernels ran, oldest first. An idle process has none.
    #[must_use]
    pub fn process_samples(&self, device: u32, since_ns: u64) -> Vec<ProcessSample> {
        let current = self.now / SAMPLE_NS;
        let first = current.saturating_sub(SAMPLES as u64 - 1);
        let mut found = Vec::new();
        for period in first..current {
            let end_ns = (period + 1) * SAMPLE_NS;
            if end_ns <= since_ns {
                continue;
            }
            for process in self.processes.iter().filter(|p| p.state == 1) {
                let busy = busy_in(&process.clients[device as usize].samples, period);
                if busy > 0 {
                    found.push(ProcessSample { pid: process.pid, end_ns, percent: percent(busy) });
                }
            }
        }
        found
    }
}
