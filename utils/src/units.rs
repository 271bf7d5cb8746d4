//! Sizes and percentages as people write them.

/// One percent in the unit that shares are kept in (parts per million).
pub const PPM_PER_PERCENT: u32 = 10_000;
/// The whole, in parts per million.
pub const PPM_ONE: u32 = 1_000_000;

/// A text that is not a size or a percentage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a size.
    #[error(
        "'{0}' is not a size: expected bytes or a number with a suffix, such as 1073741824, 512MiB, 8GiB, 1.5g or 2GB"
    )]
    Size(String),
    /// A size that does not fit into 64 bits.
    #[error("'{0}' is too large: sizes go up to 16 EiB")]
    TooLarge(String),
    /// Not a percentage.
    #[error(
        "'{0}' is not a percentage: expected a number above 0 and up to 100, such as 25, 12.5 or 30%"
    )]
    Percent(String),
}

/// Splits off the number at the start and scales it; exact for whole numbers, decimals are
/// rounded down to a byte.
fn scale(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    if number.contains('.') && fraction.is_empty() {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let fraction_value: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let denominator = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(unit)?.checked_add(fraction_value * unit / denominator)
}

/// Reads a size in bytes. Suffixes, in any case: `KiB`..`TiB` and the bare letters `k`..`t` count
/// in 1024, `KB`..`TB` in 1000, `B` or none in bytes.
///
/// # Errors
/// [`UnitError::Size`] for anything else, signs included; [`UnitError::TooLarge`] past 64 bits.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let invalid = || UnitError::Size(text.to_owned());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(split);
    let unit = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1_u128 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(invalid()),
    };
    let bytes = scale(number.trim_end(), unit).ok_or_else(invalid)?;
    u64::try_from(bytes).map_err(|_| UnitError::TooLarge(text.to_owned()))
}

/// Reads a share of a device in percent, `%` optional, and gives it in parts per million.
///
/// # Errors
/// [`UnitError::Percent`] for what is not a number, not above 0, or above 100.
pub fn parse_percent(text: &str) -> Result<u32, UnitError> {
    let invalid = || UnitError::Percent(text.to_owned());
    let trimmed = text.trim();
    let number = trimmed.strip_suffix('%').unwrap_or(trimmed).trim_end();
    let ppm = scale(number, u128::from(PPM_PER_PERCENT)).ok_or_else(invalid)?;
    match u32::try_from(ppm) {
        Ok(ppm @ 1..=PPM_ONE) => Ok(ppm),
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1073741824", 1 << 30),
            ("1024m", 1 << 30),
            ("1GiB", 1 << 30),
            ("1g", 1 << 30),
            ("1.5 GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("512 B", 512),
            ("3T", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_refused() {
        for text in
            ["", "-1", "+1", "1e9", "1.", ".5g", "12 parsecs", "GiB", "1 GiB 2", "0x10", "٣"]
        {
            assert_eq!(parse_size(text), Err(UnitError::Size(text.to_owned())), "{text}");
        }
        assert!(matches!(parse_size("99999999T"), Err(UnitError::TooLarge(_))));
    }

    #[test]
    fn percentages() {
        assert_eq!(parse_percent("25"), Ok(250_000));
        assert_eq!(parse_percent("12.5%"), Ok(125_000));
        assert_eq!(parse_percent("100 %"), Ok(PPM_ONE));
        for text in ["0", "-5", "100.1", "101", "", "%", "half", "NaN", "inf", "1e1"] {
            assert_eq!(parse_percent(text), Err(UnitError::Percent(text.to_owned())), "{text}");
        }
    }
}
