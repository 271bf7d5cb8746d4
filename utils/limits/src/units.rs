//! Sizes, percentages and weights as users write them: parsing and display.

use crate::shown::Cut;

/// One percent in parts per million, the unit of shares.
pub const PPM_PER_PERCENT: u32 = 10_000;
/// The whole, in parts per million.
pub const PPM_ONE: u32 = 1_000_000;

/// Largest weight of a session.
pub const MAX_WEIGHT: u32 = 10_000;

/// Smallest size accepted without a unit, in bytes. A smaller number is a size whose unit was forgotten: any process
/// needs hundreds of times as much to use a device.
pub const LEAST_BARE_SIZE: u64 = 1 << 20;

/// Default weight of a session: its share in percent, rounded up.
#[must_use]
pub const fn default_weight(share_ppm: u32) -> u32 {
    let percent = share_ppm.div_ceil(PPM_PER_PERCENT);
    if percent == 0 { 1 } else { percent }
}

/// Characters of a text that an error shows.
const SHOWN: usize = 160;

/// The text is not a size, percentage or weight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a size.
    #[error(
        "'{}' is not a size: expected bytes or a number with a suffix, such as 1073741824, 512MiB, 8GiB, 1.5g or 2GB",
        Cut(.0, SHOWN)
    )]
    Size(String),
    /// A size that does not fit into 64 bits.
    #[error("'{}' is too large; expected at most 16 EiB", Cut(.0, SHOWN))]
    TooLarge(String),
    /// Neither a size above 0 nor a percentage.
    #[error(
        "'{}' is not a size above 0: expected bytes or a number with a suffix, such as 1073741824, 512MiB, 8GiB, 1.5g or 2GB, or a percentage of the device such as 50%",
        Cut(.0, SHOWN)
    )]
    Amount(String),
    /// A small number, probably without its unit.
    #[error(
        "{number} without a unit is {bytes} bytes, which is probably a mistake: did you mean {number}{unit}? A size \
         below 1 MiB needs a unit, as in {number}B"
    )]
    Bare {
        /// The number.
        number: String,
        /// Its value in bytes.
        bytes: u64,
        /// The unit that was probably meant.
        unit: &'static str,
    },
    /// Not a weight.
    #[error("'{}' is not a weight: expected a whole number from 1 to {MAX_WEIGHT}", Cut(.0, SHOWN))]
    Weight(String),
    /// Not a percentage.
    #[error(
        "'{}' is not a percentage: expected 0.0001 to 100, such as 25, 12.5 or 30%",
        Cut(.0, SHOWN)
    )]
    Percent(String),
}

/// An amount of a device's memory, as users write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// This many bytes.
    Bytes(u64),
    /// A fraction of the device's memory, in parts per million.
    Ppm(u32),
}

impl Amount {
    /// The amount in bytes, on a device of `total` bytes. `None`: needs `total`.
    #[must_use]
    pub fn of(self, total: Option<u64>) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Ppm(ppm) => {
                let bytes = u128::from(total?) * u128::from(ppm) / u128::from(PPM_ONE);
                u64::try_from(bytes).ok()
            }
        }
    }
}

impl core::fmt::Display for Amount {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Bytes(bytes) => Size(*bytes).fmt(f),
            Self::Ppm(ppm) => Percent(*ppm).fmt(f),
        }
    }
}

/// Displays bytes in the largest unit that represents them exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl Size {
    /// A size for display, rounded down to whole MiB, so that a request for the shown size fits.
    #[must_use]
    pub const fn in_mib(bytes: u64) -> Self {
        const MIB: u64 = 1 << 20;
        Self(if bytes < MIB { bytes } else { bytes - bytes % MIB })
    }
}

impl core::fmt::Display for Size {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// Displays parts per million as a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u32);

impl core::fmt::Display for Percent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}%", f64::from(self.0) / f64::from(PPM_PER_PERCENT))
    }
}

/// Most decimal places that are read: a calculator gives more of them.
const PLACES: usize = 9;

/// Scales an unsigned decimal number. Exact for whole numbers; others are rounded down.
fn scale(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    if number.contains('.') && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.get(..PLACES).unwrap_or(fraction);
    let whole: u128 = whole.parse().ok()?;
    let fraction_value: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let denominator = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(unit)?.checked_add(fraction_value * unit / denominator)
}

/// Parses a size in bytes. Suffixes, in any case: `KiB`..`TiB` and the single letters `k`..`t` are powers of 1024,
/// `KB`..`TB` powers of 1000, `B` or none is bytes.
///
/// # Errors
/// [`UnitError::Size`] for anything else, including a sign; [`UnitError::TooLarge`] above 64 bits.
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

/// Parses an amount of a device's memory: a size above 0 as in [`parse_size`], or a percentage, which must end in `%`.
/// A size below [`LEAST_BARE_SIZE`] needs a unit.
///
/// # Errors
/// [`UnitError::Amount`], [`UnitError::Percent`] or [`UnitError::Bare`]; [`UnitError::TooLarge`] above 64 bits.
pub fn parse_amount(text: &str) -> Result<Amount, UnitError> {
    if text.trim_end().ends_with('%') {
        return parse_percent(text).map(Amount::Ppm);
    }
    match parse_size(text) {
        Ok(0) | Err(UnitError::Size(_)) => Err(UnitError::Amount(text.to_owned())),
        Ok(bytes)
            if bytes < LEAST_BARE_SIZE && !text.contains(|c: char| c.is_ascii_alphabetic()) =>
        {
            Err(bare(text.trim(), bytes))
        }
        Ok(bytes) => Ok(Amount::Bytes(bytes)),
        Err(error) => Err(error),
    }
}

fn bare(number: &str, bytes: u64) -> UnitError {
    // Leading zeros could make the number too long for a message.
    let number = if number.len() <= 16 { number.to_owned() } else { bytes.to_string() };
    let unit = match bytes {
        0..1_024 => "GiB",
        1_024..131_072 => "MiB",
        _ => "KiB",
    };
    UnitError::Bare { number, bytes, unit }
}

/// Parses the weight of a session.
///
/// # Errors
/// [`UnitError::Weight`] if it is not a whole number from 1 to [`MAX_WEIGHT`].
pub fn parse_weight(text: &str) -> Result<u32, UnitError> {
    parse_whole(text)
        .filter(|weight| (1..=MAX_WEIGHT).contains(weight))
        .ok_or_else(|| UnitError::Weight(text.to_owned()))
}

/// Parses a number without sign, spaces or leading zeros.
#[must_use]
pub fn parse_whole(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    (digits && canonical).then(|| text.parse().ok())?
}

/// Fractions of a millionth with which a percentage is parsed.
const FINE: u128 = 10_u128.pow(9);

/// Parses a share of a device in percent, `%` optional; returns parts per million.
///
/// # Errors
/// [`UnitError::Percent`] if it is not a number, not above 0, or above 100.
pub fn parse_percent(text: &str) -> Result<u32, UnitError> {
    let invalid = || UnitError::Percent(text.to_owned());
    let trimmed = text.trim();
    let number = trimmed.strip_suffix('%').unwrap_or(trimmed).trim_end();
    // In billionths of a millionth: a value just above 100 is refused, not rounded.
    let fine = scale(number, u128::from(PPM_PER_PERCENT) * FINE).ok_or_else(invalid)?;
    match u32::try_from(fine / FINE) {
        Ok(ppm @ 1..=PPM_ONE) if fine <= u128::from(PPM_ONE) * FINE => Ok(ppm),
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

    #[test]
    fn amounts() {
        assert_eq!(parse_amount("50%"), Ok(Amount::Ppm(500_000)));
        assert_eq!(parse_amount(" 12.5 % "), Ok(Amount::Ppm(125_000)));
        assert_eq!(parse_amount("50B"), Ok(Amount::Bytes(50)));
        assert_eq!(parse_amount("1048576"), Ok(Amount::Bytes(1 << 20)));
        assert_eq!(parse_amount("1.5g"), Ok(Amount::Bytes(3 << 29)));
        for text in ["0", "0m", "", "much", "-1"] {
            assert_eq!(parse_amount(text), Err(UnitError::Amount(text.to_owned())), "{text}");
        }
        for text in ["0%", "101%", "%", "GiB%"] {
            assert_eq!(parse_amount(text), Err(UnitError::Percent(text.to_owned())), "{text}");
        }
        let hint = |text: &str| parse_amount(text).unwrap_err().to_string();
        for (text, meant) in [
            ("8", "8 without a unit is 8 bytes, which is probably a mistake: did you mean 8GiB?"),
            (" 1.5 ", "did you mean 1.5GiB?"),
            ("8192", "did you mean 8192MiB?"),
            ("1048575", "did you mean 1048575KiB?"),
            (&("0".repeat(100) + "8"), "8 without a unit is 8 bytes"),
        ] {
            assert!(hint(text).contains(meant), "{}", hint(text));
        }
        assert_eq!(Amount::Ppm(250_000).of(Some(16 << 30)), Some(4 << 30));
        assert_eq!(Amount::Ppm(1_000_000).of(Some(u64::MAX)), Some(u64::MAX));
        assert_eq!(Amount::Ppm(250_000).of(None), None);
        assert_eq!(Amount::Bytes(7).of(None), Some(7));
        assert_eq!(Amount::Bytes(3 << 29).to_string(), "1536MiB");
        assert_eq!(Amount::Ppm(125_000).to_string(), "12.5%");
        assert_eq!([0, 1, 10_000, 10_001, PPM_ONE].map(default_weight), [1, 1, 1, 2, 100]);
        assert_eq!(Size(1).to_string() + &Size(0).to_string(), "1B0B");
    }

    #[test]
    fn a_calculators_decimals_are_accepted() {
        assert_eq!(parse_percent("33.333333333333336"), Ok(333_333));
        assert_eq!(parse_percent("0.30000000000000004%"), Ok(3_000));
        assert_eq!(parse_size("1.3333333333333333GiB"), Ok(1_431_655_764));
        for more in ["100.0000001", "100.000000001", "100.00001%"] {
            assert!(parse_percent(more).is_err(), "{more}");
        }
    }

    #[test]
    fn errors_show_a_text_of_any_length_and_kind_on_one_line() {
        let long = "9".repeat(100_000) + "\u{202e}\u{1b}[2J";
        for text in [long.as_str(), "8\nGiB\u{202e}", "８GiB", "8\u{1b}[31m"] {
            let errors = [
                parse_size(text).unwrap_err(),
                parse_amount(text).unwrap_err(),
                parse_percent(text).unwrap_err(),
                parse_weight(text).unwrap_err(),
            ];
            for error in errors.map(|error| error.to_string()) {
                assert!(error.len() < 500, "{}", error.len());
                let hidden = |c: char| c.is_control() || c == '\u{202e}';
                assert!(!error.contains(hidden), "{error:?}");
            }
        }
    }

    #[test]
    fn weights() {
        assert_eq!(["1", "10000"].map(parse_weight), [Ok(1), Ok(10_000)]);
        for text in ["0", "10001", "-1", "+1", "1.5", "01", "heavy", ""] {
            assert_eq!(parse_weight(text), Err(UnitError::Weight(text.to_owned())), "{text}");
        }
    }
}
