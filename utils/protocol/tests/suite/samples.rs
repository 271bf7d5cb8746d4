//! A value of each type, with no field at its default.

use limits::{ComputeLimit, GpuId, Policy, Priority};
use protocol::sessions::{
    ByKind, ComputeReport, ContainerReport, DamagedPage, DeviceReport, ElsewhereDevice,
    ElsewhereReport, GpuReport, MemoryReport, OvercommittedGpu, ProcessReport, SessionReport,
    SharingReason, SharingReport, SharingWay, StatusReport,
};
use protocol::{
    Admission, Decision, DeviceQuota, GatesInStream, Lease, LeaseReport, Register, Registered,
    Withheld,
};

/// The UUID as written.
pub(crate) const GPU: &str = "GPU-5a1ce000-0000-4000-8000-000000000000";
pub(crate) const GPU_ID: GpuId =
    GpuId::from_bytes([0x5a, 0x1c, 0xe0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
const SESSION: &str = "4711-8899-0123456789abcdef";

pub(crate) fn balanced() -> DeviceQuota {
    DeviceQuota {
        uuid: GPU_ID,
        limit: ComputeLimit {
            soft_ppm: Some(600_000),
            priority: Priority::Low,
            ..ComputeLimit::balance(250_000, 3)
        },
    }
}

pub(crate) fn register() -> Register {
    let fixed =
        DeviceQuota::fixed(GPU.replace("-000000000000", "-000000000001").parse().unwrap(), 500_000);
    Register {
        protocol: 2,
        session: SESSION.to_owned(),
        devices: vec![balanced(), fixed],
        gates: Some(GatesInStream { descriptor: 9 }),
    }
}

pub(crate) fn registered() -> Registered {
    Registered { worker: 3_298_534_883_329 }
}

pub(crate) fn admission() -> Admission {
    let report = LeaseReport {
        lease: 17,
        held_us: 20_000,
        estimated_us: 12_500,
        backlogged_us: 11_000,
        idle_us: 0,
        launches: 640,
        done: true,
    };
    Admission {
        report: Some(report),
        ask: Some(1_000_000),
        quota: Some(balanced()),
        gate: Some(4_294_967_294),
        together: true,
        outside_us: 1500,
        queued_us: 40_000,
        ..Admission::of(3_298_534_883_329, GPU_ID)
    }
}

/// A call that only requests a lease.
pub(crate) fn question() -> Admission {
    Admission {
        report: None,
        quota: None,
        together: false,
        outside_us: 0,
        queued_us: 0,
        ..admission()
    }
}

pub(crate) fn decision() -> Decision {
    Decision::of(Some(Lease { id: 18, length_us: 20_000, shared: true, overlaps: true }))
}

pub(crate) fn no_lease() -> Decision {
    Decision::of(None)
}

pub(crate) fn withheld() -> Decision {
    Decision { withheld: Some(Withheld::UnknownProcess), ..no_lease() }
}

pub(crate) fn sessions() -> StatusReport {
    let by_kind = ByKind {
        data: 1 << 30,
        context: 2 << 20,
        pool: 3 << 20,
        graph: 4 << 20,
        array: 5 << 20,
        overcommitted: 6 << 20,
        driver: 7 << 20,
        headroom: 8 << 20,
    };
    let process = ProcessReport {
        pid: 7,
        host_pid: Some(4711),
        name: Some("trainer".to_owned()),
        bytes: 1_110_441_984,
        by_kind,
        holding: true,
        waiting: true,
        charged_us: 9_000_000,
        density_ppm: Some(420_000),
    };
    let compute = ComputeReport {
        policy: Policy::Balance,
        share_ppm: 250_000,
        soft_ppm: Some(600_000),
        weight: 3,
        priority: Priority::Low,
        density_ppm: Some(420_000),
        recent_ppm: Some(248_000),
        mean_ppm: Some(251_000),
        delivered_us: 8_000_000,
        waited_us: 3_000_000,
        sharing: Some(SharingReport {
            way: SharingWay::Overlap,
            reason: SharingReason::MoreDone,
            since_us: 12_000_000,
            in_turns_ppm: Some(510_000),
            at_once_ppm: Some(1_000_000),
        }),
    };
    let container = ContainerReport {
        runtime: "docker".to_owned(),
        id: "ab".repeat(32),
        name: Some("web".to_owned()),
    };
    let device = DeviceReport {
        uuid: GPU_ID,
        index: Some(1),
        memory: MemoryReport {
            limit: Some(1 << 30),
            real: Some(1 << 29),
            used: 1_110_441_984,
            peak: 1_120_927_744,
            on_device: 1_104_150_528,
            by_kind,
            left: Some(0),
            over: 36_700_160,
            growth_refused: true,
        },
        compute: compute.clone(),
        processes: vec![process],
        age_us: Some(61_000_000),
        refusals: 2,
        unknown: 0,
    };
    let directory = format!("/dev/shm/sluice-1000/{SESSION}");
    let gpu = GpuReport {
        uuid: GPU_ID,
        index: Some(0),
        health: "unhealthy".to_owned(),
        unhealthy: Some("XID 79".to_owned()),
        withheld: Some("unhealthy".to_owned()),
        cordoned: true,
        unknown_processes: 1,
    };
    let memory = Some(device.memory.clone());
    let elsewhere = ElsewhereDevice { uuid: GPU_ID, index: Some(1), compute, memory };
    StatusReport {
        overcommitted: vec![OvercommittedGpu {
            uuid: GPU_ID,
            shares_ppm: 1_500_000,
            notice: "shares on GPU 1 add up to 150.0 %".to_owned(),
        }],
        gpus: vec![gpu],
        damaged: vec![DamagedPage {
            session: SESSION.to_owned(),
            page: format!("{directory}/GPU-5a1ce000-0000-4000-8000-000000000001.page").into(),
            problem: "it does not start like a page".to_owned(),
        }],
        sessions: vec![SessionReport {
            session: SESSION.to_owned(),
            name: Some("trainer".to_owned()),
            uid: 1000,
            user: Some("ada".to_owned()),
            container: Some(container.clone()),
            pod: Some("5a1ce000-0000-4000-8000-000000000000".to_owned()),
            command: Some("python train.py".to_owned()),
            frozen: true,
            directory: directory.into(),
            devices: vec![device],
        }],
        elsewhere: vec![ElsewhereReport {
            session: SESSION.to_owned(),
            uid: 1001,
            user: Some("bob".to_owned()),
            container: Some(container),
            pod: Some("5a1ce000-0000-4000-8000-000000000001".to_owned()),
            frozen: true,
            pids: vec![4712],
            devices: vec![elsewhere],
        }],
    }
}
