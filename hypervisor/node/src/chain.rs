//! Errors with their causes: tonic's own words are "transport error".

pub(crate) fn chain(error: impl std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    said
}
