//! Parses quantities of Kubernetes as whole numbers. The API server writes 1000 as `1k`.

/// Why a quantity is no whole number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no quantity; expected a whole number such as 1024, 1k or 2Ki")]
pub struct QuantityError(String);

const SUFFIXES: [(&str, u64); 12] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

/// Parses a quantity.
///
/// # Errors
/// [`QuantityError`]: no quantity, negative, fractional, or too large.
pub fn whole(text: &str) -> Result<u64, QuantityError> {
    let wrong = || QuantityError(text.chars().take(40).collect());
    let known = |(suffix, times): (&str, u64)| Some((text.strip_suffix(suffix)?, times));
    let power_of_ten = || {
        let (digits, power) = text.split_once(['e', 'E'])?;
        Some((digits, 10_u64.checked_pow(power.parse().ok()?)?))
    };
    let suffixed = SUFFIXES.into_iter().find_map(known);
    let (digits, times) = suffixed.or_else(power_of_ten).unwrap_or((text, 1));
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = if is_plain { digits.parse().ok() } else { None }.ok_or_else(wrong)?;
    number.checked_mul(times).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_the_api_server_writes_them() {
        for (text, number) in [
            ("0", 0),
            ("1024", 1024),
            ("1k", 1000),
            ("81k", 81_000),
            ("2Ki", 2048),
            ("3M", 3_000_000),
            ("1e3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
        ] {
            assert_eq!(whole(text), Ok(number), "{text}");
        }
        for text in [
            "",
            "k",
            "-1",
            "+1",
            "1.5",
            "1.5k",
            "100m",
            "1 k",
            "16Ei",
            "99999999999999999999",
            "1e99",
        ] {
            assert!(whole(text).is_err(), "{text}");
        }
        let said = whole("100m").unwrap_err().to_string();
        assert!(said.contains("\"100m\"") && said.contains("expected a whole number"), "{said}");
    }

    proptest! {
        #[test]
        fn any_number_is_read_as_it_is_written(number: u64, text in ".{0,12}") {
            prop_assert_eq!(whole(&number.to_string()), Ok(number));
            _ = whole(&text);
        }
    }
}
