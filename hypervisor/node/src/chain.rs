//! Formats an error with its causes: tonic's own message is just "transport error".

pub(crate) fn chain(error: impl std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        // Some errors already include their cause.
        if !said.ends_with(&why) {
            said = format!("{said}: {why}");
        }
        cause = error.source();
    }
    said
}
