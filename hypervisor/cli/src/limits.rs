//! Turns options into the variables that the limiter reads.

use limits::memory::Part;
use limits::request::{Device, MemoryRequest, Unused};
use limits::units::{Amount, LEAST_BARE_SIZE, PPM_PER_PERCENT, Percent, Size};
use limits::{Limits, Policy, Request, RequestError, env};
use serde_json::{Map, Value};

use super::Error;
use super::devices::VisibleGpu;

/// Checks that the options of a new session are possible together, and on these devices.
///
/// # Errors
/// [`Error::Usage`] for a setting that would have no effect, or for more memory than a device has,
/// which would be no limit at all.
pub fn check(request: &Request, devices: &[VisibleGpu]) -> Result<(), Error> {
    let mut request = request.clone();
    // It may refer to a share in the user's own variables.
    let fixed = request.policy.as_ref().is_some_and(|policy| policy.value == Policy::Fixed);
    if fixed && request.share.is_none() {
        request.policy = None;
    }
    request.check(&Limits::NONE, Unused::Refused)?;
    // Where NVML does not tell a device's size, the limiter asks the driver.
    for device in devices.iter().filter(|device| device.known_memory().is_some()) {
        change(&request, &Limits::NONE, Some(device), &device.title())?;
    }
    Ok(())
}

/// What a session may take after `request`, on `device` if NVML knows it. Messages call it `name`.
///
/// # Errors
/// [`RequestError`]
pub fn change(
    request: &Request,
    before: &Limits,
    device: Option<&VisibleGpu>,
    name: &str,
) -> Result<Limits, RequestError> {
    let target = Device { name, total: device.and_then(VisibleGpu::known_memory) };
    let after = request.over(before, target, Unused::Refused)?;
    request.fits(&after, target)?;
    Ok(after)
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// The variables to set (`Some`) or to remove (`None`), for a session on `devices`. For settings
/// that are not asked for, the user's own variables stay.
#[must_use]
pub fn variables(request: &Request, devices: &[VisibleGpu]) -> Vec<(&'static str, Option<String>)> {
    let mut variables = Vec::new();
    let mut of_devices = |name, value: Option<Value>| {
        variables.push((name, value.map(|value| by_uuid(devices, &value))));
    };
    if let Some(MemoryRequest::Limit(memory)) = request.memory.as_ref().map(|asked| asked.value) {
        of_devices(env::MEMORY_LIMIT, Some(amount(memory)));
        // The user's own value is a part of another total.
        let real = request.real.as_ref().and_then(|real| match real.value {
            Part::Amount(real) => Some(amount(real)),
            Part::Ratio(_) | Part::Device => None,
        });
        of_devices(env::MEMORY_REAL, real);
    }
    let soft = request.soft.as_ref().map(|soft| percent(soft.value));
    let implied = if soft.is_some() { Policy::Balance } else { Policy::Fixed };
    if let Some(share) = &request.share {
        of_devices(env::COMPUTE_LIMIT, Some(percent(share.value)));
        of_devices(env::SOFT_LIMIT, soft);
        let weight = request.weight.as_ref().map(|weight| weight.value.to_string());
        variables.push((env::WEIGHT, weight));
        let priority = request.priority.as_ref().map(|priority| priority.value.to_string());
        variables.push((env::PRIORITY, priority));
    }
    // A share that is asked for here is enforced, even if the environment names another policy.
    let asked = request.policy.as_ref().map(|policy| policy.value);
    if let Some(policy) = asked.or(request.share.as_ref().map(|_| implied)) {
        variables.push((env::POLICY, Some(policy.to_string())));
    }
    variables
}

fn by_uuid(devices: &[VisibleGpu], value: &Value) -> String {
    let object: Map<_, _> =
        devices.iter().map(|device| (device.uuid.to_string(), value.clone())).collect();
    Value::Object(object).to_string()
}

fn amount(amount: Amount) -> Value {
    match amount {
        Amount::Bytes(bytes) if bytes >= LEAST_BARE_SIZE => Value::from(bytes),
        Amount::Bytes(bytes) => Value::from(Size(bytes).to_string()),
        Amount::Ppm(ppm) => Value::from(Percent(ppm).to_string()),
    }
}

fn percent(ppm: u32) -> Value {
    if ppm.is_multiple_of(PPM_PER_PERCENT) {
        Value::from(ppm / PPM_PER_PERCENT)
    } else {
        Value::from(f64::from(ppm) / f64::from(PPM_PER_PERCENT))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cli::LimitArgs;
    use super::*;
    use limits::{GpuId, Priority};

    const A: &str = "GPU-0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a";

    fn devices() -> Vec<VisibleGpu> {
        [10, 11]
            .iter()
            .zip(0..)
            .map(|(byte, index)| VisibleGpu {
                index,
                uuid: GpuId::from_bytes([*byte; 16]),
                name: "Test".to_owned(),
                memory: 1 << 30,
            })
            .collect()
    }

    fn bytes(memory: u64) -> LimitArgs {
        LimitArgs { mem: Some(Amount::Bytes(memory)), ..LimitArgs::default() }
    }

    fn one(value: &str) -> Option<String> {
        Some(format!("{{\"{A}\":{value}}}"))
    }

    #[test]
    fn each_option_has_its_variable() {
        let request = LimitArgs {
            mem: Some(Amount::Ppm(125_000)),
            mem_real: Some(Amount::Ppm(100_000)),
            compute: Some(300_000),
            soft: Some(600_000),
            weight: Some(7),
            priority: Some(Priority::Low),
            policy: None,
        }
        .request();
        assert!(check(&request, &devices()).is_ok());
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            variables(&request, &devices()[..1]),
            [
                (env::MEMORY_LIMIT, one("\"12.5%\"")),
                (env::MEMORY_REAL, one("\"10%\"")),
                (env::COMPUTE_LIMIT, one("30")),
                (env::SOFT_LIMIT, one("60")),
                (env::WEIGHT, text("7")),
                (env::PRIORITY, text("low")),
                (env::POLICY, text("balance")),
            ]
        );
        // Such a small number would be refused because it has no unit.
        let small = variables(&bytes(8).request(), &devices()[..1]);
        assert_eq!(small[0].1, one("\"8B\""));
    }

    #[test]
    fn a_limit_that_limits_nothing_is_refused() {
        let refused = |options: LimitArgs| check(&options.request(), &devices()).unwrap_err();
        assert!(check(&bytes(1 << 30).request(), &devices()).is_ok());
        let more = bytes((1 << 30) + 1);
        let message = refused(more).to_string();
        assert!(message.contains("(Test) has, 1GiB;"), "{message}");
        assert!(message.contains("--mem-real"), "{message}");
        let hosted = LimitArgs { mem_real: Some(Amount::Bytes(1 << 30)), ..more };
        assert!(check(&hosted.request(), &devices()).is_ok());
        let half = LimitArgs { mem: Some(Amount::Ppm(500_000)), ..LimitArgs::default() };
        let part = LimitArgs { mem_real: Some(Amount::Bytes(1 << 30)), ..half };
        // Whether the device's size is known or not.
        assert!(check(&part.request(), &[]).is_ok());
        assert!(refused(part).to_string().contains("--mem-real 1GiB is more than --mem 512MiB"));
    }

    #[test]
    fn a_new_session_brings_its_own_share_or_takes_the_users() {
        let policy = |policy| LimitArgs { policy: Some(policy), ..LimitArgs::default() }.request();
        for alone in [Policy::Fixed, Policy::None] {
            assert!(check(&policy(alone), &devices()).is_ok());
            let expected = [(env::POLICY, Some(alone.to_string()))];
            assert_eq!(variables(&policy(alone), &devices()), expected);
        }
        let message = check(&policy(Policy::Balance), &[]).unwrap_err().to_string();
        assert!(message.contains("--policy balance needs --compute"), "{message}");
        let soft = LimitArgs { soft: Some(1), policy: Some(Policy::Fixed), ..LimitArgs::default() };
        let message = check(&soft.request(), &[]).unwrap_err().to_string();
        assert!(message.contains("--burst needs --compute"), "{message}");
    }
}
