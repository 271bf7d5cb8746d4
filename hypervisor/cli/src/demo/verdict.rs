//! The demo's result: whether the limits held.

use std::fmt::Write;

use serde::Serialize;

/// How far a delivered share may be from its limit, in either direction.
/// Short turns cost the time of each handover.
pub(super) const TOLERANCE: f64 = 0.04;

/// The result, as `--json` prints it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct DemoReport {
    pub(super) device: DemoDeviceReport,
    pub(super) tenants: Vec<TenantReport>,
    /// Kernels a second of the load alone, without limits.
    pub(super) native_rate: f64,
    /// Sum of the tenants' rates over the native rate.
    pub(super) aggregate: f64,
}

/// The device.
#[derive(Debug, Clone, Serialize)]
pub(super) struct DemoDeviceReport {
    /// `fake` or `real`.
    pub(super) kind: &'static str,
    pub(super) name: String,
}

/// One tenant.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TenantReport {
    pub(super) name: &'static str,
    /// Share of the device's time, 0 to 1.
    pub(super) compute_limit: f64,
    /// The tenant's rate over the native rate.
    pub(super) compute_delivered: f64,
    pub(super) mem_limit_bytes: u64,
    pub(super) mem_granted_bytes: u64,
    /// The driver's error that ended the allocations.
    pub(super) mem_stop: String,
}

impl TenantReport {
    fn compute_holds(&self) -> bool {
        (self.compute_delivered - self.compute_limit).abs() <= TOLERANCE
    }

    /// Whether the limit stopped it: with the error that programs expect, not above the limit, and
    /// not far below it either (the context, which also counts, takes about half a GiB).
    fn memory_holds(&self) -> bool {
        let fair = self.mem_limit_bytes / 4..=self.mem_limit_bytes;
        self.mem_stop == "CUDA_ERROR_OUT_OF_MEMORY" && fair.contains(&self.mem_granted_bytes)
    }
}

impl DemoReport {
    /// Whether every limit held.
    pub(super) fn holds(&self) -> bool {
        self.tenants.iter().all(|tenant| tenant.compute_holds() && tenant.memory_holds())
    }

    /// The table for people, coloured or not.
    pub(super) fn table(&self, coloured: bool) -> String {
        let mark = |holds| mark(holds, coloured);
        let mut text = String::new();
        let _ = writeln!(text, "           GPU time                 memory");
        let _ = writeln!(
            text,
            "{:10}{:>6}{:>11}     {:>8}{:>10}  stopped by",
            "", "limit", "delivered", "limit", "granted"
        );
        for tenant in &self.tenants {
            let _ = writeln!(
                text,
                "{:<10}{:>4.0} %{:>9.1} % {} {:>9}{:>10}  {} {}",
                tenant.name,
                tenant.compute_limit * 100.0,
                tenant.compute_delivered * 100.0,
                mark(tenant.compute_holds()),
                mebibytes(tenant.mem_limit_bytes),
                mebibytes(tenant.mem_granted_bytes),
                tenant.mem_stop,
                mark(tenant.memory_holds()),
            );
        }
        let _ = writeln!(
            text,
            "{:<16}{:>9.1} %    of the load alone",
            "together",
            self.aggregate * 100.0
        );
        let _ = writeln!(
            text,
            "\n{}",
            if self.holds() {
                format!(
                    "Every limit held: shares within {:.0} points, memory never above the limit.",
                    TOLERANCE * 100.0
                )
            } else {
                format!(
                    "A LIMIT DID NOT HOLD (shares may be off by {:.0} points).",
                    TOLERANCE * 100.0
                )
            }
        );
        if self.tenants.iter().any(|t| t.compute_delivered < t.compute_limit - TOLERANCE) {
            text.push_str(
                "Less than the share: turns are handed over late on a machine whose CPUs are busy with other work.\n",
            );
        }
        text
    }
}

fn mark(holds: bool, coloured: bool) -> String {
    let (text, colour) = if holds { ("ok", "32") } else { ("FAILED", "31;1") };
    if coloured { format!("\x1b[{colour}m{text}\x1b[m") } else { text.to_owned() }
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(delivered: f64, granted: u64, stop: &str) -> DemoReport {
        DemoReport {
            device: DemoDeviceReport { kind: "fake", name: "Test".to_owned() },
            tenants: vec![TenantReport {
                name: "tenant-a",
                compute_limit: 0.25,
                compute_delivered: delivered,
                mem_limit_bytes: 2 << 30,
                mem_granted_bytes: granted,
                mem_stop: stop.to_owned(),
            }],
            native_rate: 400.0,
            aggregate: delivered,
        }
    }

    const OOM: &str = "CUDA_ERROR_OUT_OF_MEMORY";

    #[test]
    fn a_missed_share_names_the_likely_reason() {
        assert!(report(0.20, 3 << 29, OOM).table(false).contains("CPUs are busy"));
        assert!(!report(0.30, 3 << 29, OOM).table(false).contains("CPUs are busy"));
    }

    #[test]
    fn a_limit_holds_only_if_all_of_it_does() {
        assert!(report(0.27, 3 << 29, OOM).holds());
        for broken in [
            report(0.30, 3 << 29, OOM),
            report(0.20, 3 << 29, OOM),
            report(f64::NAN, 3 << 29, OOM),
            report(0.25, (2 << 30) + 1, OOM),
            report(0.25, 0, OOM),
            report(0.25, 3 << 29, "CUDA_ERROR_UNKNOWN"),
        ] {
            assert!(!broken.holds(), "{broken:?}");
            assert!(broken.table(false).contains("FAILED"), "{}", broken.table(false));
        }
    }
}
