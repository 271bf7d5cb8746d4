//! `sluice plot`: draws a recording.

mod draw;

use std::fs;

use super::cli::PlotArgs;
use super::record::file;
use super::series::Series;
use super::{Error, say};

/// Draws a recording as SVG.
///
/// # Errors
/// [`Error::Record`] for the recording, [`Error::System`] for the picture.
pub(crate) fn run(arguments: &PlotArgs) -> Result<u8, Error> {
    let extension = arguments.output.extension().and_then(|extension| extension.to_str());
    if let Some(other) = extension.filter(|extension| !extension.eq_ignore_ascii_case("svg")) {
        return Err(Error::Usage(format!(
            "--output '{}': cannot write {}; expected a name that ends in .svg",
            arguments.output.display(),
            other.to_uppercase()
        )));
    }
    let samples = file::read(&arguments.file)?;
    let mut series = Series::all();
    samples.iter().for_each(|sample| series.add(sample));
    if let Some(session) = &arguments.session {
        series.sessions.retain(|key, track| {
            track.name.starts_with(session.as_str()) || key.session.starts_with(session.as_str())
        });
        if series.sessions.is_empty() {
            return Err(Error::Usage(format!(
                "--session '{session}': no such session in {}",
                arguments.file.display()
            )));
        }
    }
    let svg = draw::svg(&series)
        .map_err(|problem| Error::system("cannot draw", std::io::Error::other(problem)))?;
    fs::write(&arguments.output, svg).map_err(|error| {
        Error::system(format!("cannot write {}", arguments.output.display()), error)
    })?;
    say(&format!("plotted {} samples in {}", samples.len(), arguments.output.display()));
    Ok(0)
}
