//! Certificates in files that something else renews, such as cert-manager through a mounted Secret.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use http_bidir_comm::server::{ServerTls, ServerTlsError};

/// Longest accepted certificate or key.
const LONGEST_PEM: u64 = 1 << 20;

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file is unreadable.
    #[error("{option} {}: {source}", .file.display())]
    Unreadable {
        /// The option that names the file.
        option: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// They hold no usable certificate and key.
    #[error("--tls-cert {}, --tls-key {}: {source}", .certificate.display(), .key.display())]
    Unusable {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why.
        source: ServerTlsError,
    },
}

/// The two files, and their last content.
#[derive(Debug)]
pub(crate) struct Files {
    certificate: PathBuf,
    key: PathBuf,
    seen: Option<(Vec<u8>, Vec<u8>)>,
}

impl Files {
    pub(crate) fn new(certificate: &Path, key: &Path) -> Self {
        Self { certificate: certificate.to_owned(), key: key.to_owned(), seen: None }
    }

    /// Reads the files. `None`: unchanged.
    pub(crate) fn refresh(&mut self) -> Result<Option<ServerTls>, FilesError> {
        let now = (read("--tls-cert", &self.certificate)?, read("--tls-key", &self.key)?);
        if self.seen.as_ref() == Some(&now) {
            return Ok(None);
        }
        let tls = ServerTls::from_pem(&now.0, &now.1);
        // An unusable pair is reported once.
        self.seen = Some(now);
        let (certificate, key) = (self.certificate.clone(), self.key.clone());
        tls.map(Some).map_err(|source| FilesError::Unusable { certificate, key, source })
    }
}

fn read(option: &'static str, file: &Path) -> Result<Vec<u8>, FilesError> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|open| open.take(LONGEST_PEM).read_to_end(&mut bytes));
    let wrong = |source| FilesError::Unreadable { option, file: file.to_owned(), source };
    read.map_err(wrong).map(|_| bytes)
}
