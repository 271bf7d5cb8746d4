//! Parses vgpu.rs's formats: amounts in pod annotations, and its file of GPU models.
//!
//! Its pods request TFLOPS of a GPU, so the GPU's speed must be known; it is in the file that vgpu.rs's operator gives
//! to nodes.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;

/// Why a text is no amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no amount; expected {form}, above 0")]
pub struct AmountError {
    text: String,
    form: &'static str,
}

const TFLOPS: &str = "a number of TFLOPS such as 10, 10.5, 71200m or 1k";
const PERCENT: &str = "a percentage such as 25, 12.5 or 12500m";
const BYTES: &str = "a size such as 1073741824, 512Mi or 2Gi";
const TFLOPS_UNITS: [(&str, f64); 6] =
    [("", 1.0), ("m", 0.001), ("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9)];
/// Units in any case. Those without an `i` mean the same powers of two.
const BYTE_UNITS: [(&str, f64); 10] = [
    ("", 1.0),
    ("b", 1.0),
    ("k", 1024.0),
    ("ki", 1024.0),
    ("m", 1_048_576.0),
    ("mi", 1_048_576.0),
    ("g", 1_073_741_824.0),
    ("gi", 1_073_741_824.0),
    ("t", 1_099_511_627_776.0),
    ("ti", 1_099_511_627_776.0),
];

/// Parses TFLOPS as thousandths.
///
/// # Errors
/// [`AmountError`]
pub fn milli_tflops(text: &str) -> Result<u64, AmountError> {
    amount(text, TFLOPS, |unit| TFLOPS_UNITS.into_iter().find(|(known, _)| *known == unit), 1000.0)
}

/// Parses a percentage of a GPU's compute as thousandths of a percent.
///
/// # Errors
/// [`AmountError`]
pub fn milli_percent(text: &str) -> Result<u64, AmountError> {
    amount(text, PERCENT, |unit| TFLOPS_UNITS.into_iter().find(|(known, _)| *known == unit), 1000.0)
}

/// Parses a size in bytes.
///
/// # Errors
/// [`AmountError`]
pub fn bytes(text: &str) -> Result<u64, AmountError> {
    let known =
        |unit: &str| BYTE_UNITS.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(unit));
    amount(text, BYTES, known, 1.0)
}

fn amount(
    text: &str,
    form: &'static str,
    unit: impl Fn(&str) -> Option<(&'static str, f64)>,
    times: f64,
) -> Result<u64, AmountError> {
    let text = text.trim();
    let wrong = || AmountError { text: text.chars().take(40).collect(), form };
    let end = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let is_plain = |c: char| c.is_ascii_digit() || c == '.';
    if !digits.chars().all(is_plain) {
        return Err(wrong());
    }
    let (_, each) = unit(suffix).ok_or_else(wrong)?;
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    whole(number * each * times).ok_or_else(wrong)
}

/// Rounds to a whole number above 0 that a float represents exactly.
fn whole(number: f64) -> Option<u64> {
    const MOST: f64 = 9_007_199_254_740_992.0;
    let rounded = number.round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, and in the range"
    )]
    (1.0..=MOST).contains(&rounded).then_some(rounded as u64)
}

/// A whole GPU in thousandths of a percent.
pub(crate) const WHOLE: u64 = 100_000;

/// The compute share (percent) for a limit of TFLOPS on a GPU that `has` this many. 0: no limit.
#[must_use]
pub fn cores(limit: u64, has: Option<u64>) -> u64 {
    let Some(has) = has.filter(|has| *has > 0 && limit > 0) else { return 0 };
    let hundredths = (u128::from(limit) * 100 + u128::from(has) / 2) / u128::from(has);
    // The smallest share is 1 %.
    if hundredths >= 100 { 0 } else { u64::try_from(hundredths).unwrap_or_default().max(1) }
}

/// The speed of GPU models in thousandths of a TFLOPS, by product name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuInfo(BTreeMap<String, u64>);

/// The text is no such file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; expected a YAML list of GPUs with model, fullModelName and fp16TFlops")]
pub struct GpuInfoError(String);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Product {
    model: String,
    full_model_name: String,
    #[serde(rename = "fp16TFlops")]
    tflops: f64,
}

impl GpuInfo {
    /// The speed of a model. `None`: not in the file.
    #[must_use]
    pub fn milli_tflops(&self, product: &str) -> Option<u64> {
        self.0.get(product).copied()
    }
}

impl FromStr for GpuInfo {
    type Err = GpuInfoError;

    fn from_str(text: &str) -> Result<Self, GpuInfoError> {
        let products: Vec<Product> =
            serde_saphyr::from_str(text).map_err(|error| GpuInfoError(error.to_string()))?;
        let mut all = BTreeMap::new();
        for Product { model, full_model_name, tflops } in products {
            let number = whole(tflops * 1000.0)
                .ok_or_else(|| GpuInfoError(format!("{model}: fp16TFlops {tflops}")))?;
            all.insert(model, number);
            all.insert(full_model_name, number);
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values from vgpu.rs's own tests.
    #[test]
    fn amounts_are_read_as_vgpu_rs_reads_them() {
        for (text, number) in
            [("10.5", 10_500), ("71200m", 71_200), ("5k", 5_000_000), ("1K", 1_000_000), ("1m", 1)]
        {
            assert_eq!(milli_tflops(text), Ok(number), "{text}");
        }
        for (text, number) in [
            ("1024", 1024),
            ("1024B", 1024),
            ("1Ki", 1024),
            ("1gi", 1 << 30),
            ("1GI", 1 << 30),
            ("2G", 2 << 30),
            ("1.5Gi", 3 << 29),
            (" 4Ti ", 4 << 40),
        ] {
            assert_eq!(bytes(text), Ok(number), "{text}");
        }
        for text in ["", "0", "-1", "x", "1 Gi", "1Xi", "Gi", "inf", "NaN", "1e9", "+5", "1..2"] {
            assert!(milli_tflops(text).is_err() && bytes(text).is_err(), "{text}");
        }
        let said = bytes("many").unwrap_err().to_string();
        assert_eq!(
            said,
            "\"many\" is no amount; expected a size such as 1073741824, 512Mi or 2Gi, above 0"
        );
    }

    /// As in vgpu.rs's tests: rounded, and never more than the whole.
    #[test]
    fn a_limit_is_a_part_of_what_a_gpu_has() {
        let of = |limit, has| cores(limit, Some(has));
        assert_eq!((of(5000, 10_000), of(3330, 10_000), of(3350, 10_000)), (50, 33, 34));
        assert_eq!((of(15_000, 10_000), of(9_999, 10_000), of(1, 10_000)), (0, 0, 1));
        assert_eq!((cores(5, None), cores(5, Some(0)), cores(0, Some(5))), (0, 0, 0));
    }

    #[test]
    fn a_file_of_products_has_two_names_for_each() {
        let text = "
# Turing Architecture Series
- model: T4
  fullModelName: \"Tesla T4\"
  vendor: NVIDIA
  costPerHour: 0.53
  fp16TFlops: 65

- model: A40
  fullModelName: \"NVIDIA A40-PCIE-48GB\"
  vendor: NVIDIA
  costPerHour: 0.4
  fp16TFlops: 149.7
";
        let info: GpuInfo = text.parse().unwrap();
        assert_eq!(info.milli_tflops("Tesla T4"), Some(65_000));
        assert_eq!(info.milli_tflops("A40"), Some(149_700));
        assert_eq!(info.milli_tflops("Unknown GPU"), None);
        for text in ["x", "- model: T4", "- {model: a, fullModelName: b, fp16TFlops: 0}"] {
            let said = text.parse::<GpuInfo>().unwrap_err().to_string();
            assert!(said.ends_with("fullModelName and fp16TFlops"), "{said}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_readers(text in ".{0,40}") {
            _ = (milli_tflops(&text), bytes(&text), text.parse::<GpuInfo>());
        }

        #[test]
        fn whole_amounts_are_read_as_they_are_written(number in 1_u64..1 << 50) {
            prop_assert_eq!(bytes(&number.to_string()), Ok(number));
            prop_assert_eq!(milli_tflops(&format!("{number}m")), Ok(number));
        }

        #[test]
        fn no_limit_is_more_than_all(limit: u64, has: u64) {
            let cores = cores(limit, Some(has));
            prop_assert!(cores < 100);
            prop_assert!(limit == 0 || limit >= has || cores > 0 || u128::from(limit) * 200 >= u128::from(has) * 199);
        }
    }
}
