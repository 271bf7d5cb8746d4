//! Parses JSON objects with a value per device.

use super::error::OneLine;
use limits::gpu::GpuKey;
use serde_json::Value as Json;

/// Parses an object with a value per device. `each` parses a value, given as text of a JSON number or string.
///
/// # Errors
/// What is wrong, with the key.
pub(super) fn read<V>(
    text: &str,
    each: impl Fn(&str) -> Result<V, String>,
) -> Result<Vec<(GpuKey, V)>, String> {
    let object = match serde_json::from_str(text) {
        Ok(Json::Object(object)) => object,
        Ok(_) => return Err("not a JSON object".to_owned()),
        Err(error) => return Err(format!("not JSON ({error})")),
    };
    if object.is_empty() {
        return Err("it names no device, so nothing would be limited".to_owned());
    }
    let mut values: Vec<(GpuKey, V)> = Vec::with_capacity(object.len());
    for (name, json) in &object {
        let key = name
            .parse::<GpuKey>()
            .map_err(|problem| format!("the key '{}' is {problem}", OneLine(name)))?;
        let written = match json {
            Json::Number(number) => number.to_string(),
            Json::String(string) => string.clone(),
            _ => return Err(format!("the value of '{}' is not a number", OneLine(name))),
        };
        let value = each(&written).map_err(|problem| {
            format!("the value {} of '{}': {problem}", OneLine(&written), OneLine(name))
        })?;
        if values.iter().any(|(known, _)| *known == key) {
            return Err(format!("the device '{}' is named twice", OneLine(name)));
        }
        values.push((key, value));
    }
    // The parser keeps only the last of two equal keys, which would lose a limit.
    if members(text) != object.len() {
        return Err("a key occurs twice".to_owned());
    }
    Ok(values)
}

/// Number of members of a valid JSON object without nested objects: its colons outside strings.
fn members(text: &str) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for c in text.bytes() {
        match c {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b':' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}
