//! The certificates that replicas share in a Secret: how they are stored there, and when each is replaced and served.
//! Pure, except for the randomness of keys.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// The Secret's annotation with the time of the newest certificate, in seconds since 1970.
const ISSUED: &str = "sluice.dev/issued";
/// Clocks of other machines may be this far behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// When certificates are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A certificate's lifetime. It is replaced after two thirds of it.
    pub lifetime: Duration,
    /// Time from a certificate's creation to its use, in which all API servers learn to trust it.
    pub settle: Duration,
    /// Interval of checks for changes.
    pub poll: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        Self {
            lifetime: Duration::from_secs(90 * 24 * 3600),
            settle: Duration::from_secs(300),
            poll: Duration::from_secs(30),
        }
    }
}

/// A certificate, its key, and the CA that signed it, in PEM. The CA's key is discarded, so it signs nothing else.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

// A derived implementation would show the key.
impl std::fmt::Debug for Pair {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// What the Secret stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    issued: u64,
    newest: Pair,
    /// Its predecessor, which is served until all API servers trust the newest.
    previous: Option<Pair>,
}

const NEWEST: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const PREVIOUS: [&str; 3] = ["previous-ca.crt", "previous-tls.crt", "previous-tls.key"];

impl Pair {
    fn read(data: &BTreeMap<String, ByteString>, names: [&str; 3]) -> Option<Self> {
        let text = |name| String::from_utf8(data.get(name)?.0.clone()).ok();
        let [authority, certificate, key] = names.map(text);
        Some(Self { authority: authority?, certificate: certificate?, key: key? })
    }

    fn write(&self, data: &mut BTreeMap<String, ByteString>, names: [&str; 3]) {
        let texts = [&self.authority, &self.certificate, &self.key];
        let text = |text: &String| ByteString(text.clone().into_bytes());
        data.extend(names.into_iter().zip(texts).map(|(name, it)| (name.to_owned(), text(it))));
    }

    /// Issues a certificate for a host, valid from `issued` on.
    fn issue(host: &str, issued: u64, lifetime: Duration) -> Result<Self, rcgen::Error> {
        let start = date_time_ymd(1970, 1, 1) + Duration::from_secs(issued);
        let valid = |mut params: CertificateParams| {
            (params.not_before, params.not_after) = (start - CLOCK_SKEW, start + lifetime);
            params
        };
        let mut authority = valid(CertificateParams::new(Vec::new())?);
        // A bundle may hold two CAs, whose names should differ.
        authority.distinguished_name.push(DnType::CommonName, format!("{host} CA {issued}"));
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let authority_pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let mut own = valid(CertificateParams::new([host.to_owned()])?);
        own.distinguished_name.push(DnType::CommonName, host);
        own.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        own.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = own.signed_by(&key, &issuer)?.pem();
        Ok(Self { authority: authority_pem, certificate, key: key.serialize_pem() })
    }
}

impl Stored {
    /// Reads a Secret. `None`: it is incomplete, or its certificate has expired.
    pub(crate) fn read(secret: &Secret, rotation: &Rotation, now: u64) -> Option<Self> {
        let annotations = secret.metadata.annotations.as_ref()?;
        let issued = annotations.get(ISSUED)?.parse().ok()?;
        let data = secret.data.as_ref()?;
        let newest = Pair::read(data, NEWEST)?;
        let stored = Self { issued, newest, previous: Pair::read(data, PREVIOUS) };
        stored.is_valid(rotation, now).then_some(stored)
    }

    /// Writes to a Secret, and keeps its other entries.
    pub(crate) fn write(&self, secret: &mut Secret) {
        let annotations = secret.metadata.annotations.get_or_insert_default();
        annotations.insert(ISSUED.to_owned(), self.issued.to_string());
        let data = secret.data.get_or_insert_default();
        PREVIOUS.iter().for_each(|name| drop(data.remove(*name)));
        self.newest.write(data, NEWEST);
        if let Some(previous) = &self.previous {
            previous.write(data, PREVIOUS);
        }
    }

    /// Whether the newest certificate has to be replaced.
    pub(crate) fn is_due(&self, rotation: &Rotation, now: u64) -> bool {
        now.saturating_sub(self.issued) >= rotation.lifetime.as_secs() / 3 * 2
    }

    /// Issues a new certificate. A valid predecessor stays in use until the new one has settled.
    pub(crate) fn replace(
        before: Option<Self>,
        host: &str,
        rotation: &Rotation,
        now: u64,
    ) -> Result<Self, rcgen::Error> {
        let settled = now.saturating_add(rotation.settle.as_secs());
        let before = before.filter(|stored| stored.is_valid(rotation, settled));
        let newest = Pair::issue(host, now, rotation.lifetime)?;
        Ok(Self { issued: now, newest, previous: before.map(|stored| stored.newest) })
    }

    fn is_valid(&self, rotation: &Rotation, at: u64) -> bool {
        at < self.issued.saturating_add(rotation.lifetime.as_secs())
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = &Pair> {
        [&self.newest].into_iter().chain(&self.previous)
    }

    /// The CAs that API servers have to trust, in PEM.
    pub(crate) fn authorities(&self) -> String {
        let previous = self.previous.as_ref().map_or("", |pair| &pair.authority);
        format!("{}{previous}", self.newest.authority)
    }

    /// The certificate to serve.
    pub(crate) fn current(&self, rotation: &Rotation, now: u64) -> &Pair {
        let has_settled = now >= self.issued.saturating_add(rotation.settle.as_secs());
        match &self.previous {
            Some(previous) if !has_settled => previous,
            _ => &self.newest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "sluice-webhook.sluice.svc";
    const ROTATION: Rotation = Rotation {
        lifetime: Duration::from_secs(900),
        settle: Duration::from_secs(30),
        poll: Duration::from_secs(1),
    };

    fn replaced(before: Option<&Stored>, now: u64) -> Stored {
        Stored::replace(before.cloned(), HOST, &ROTATION, now).unwrap()
    }

    fn after_a_secret(stored: &Stored, now: u64) -> Option<Stored> {
        let mut secret = Secret::default();
        stored.write(&mut secret);
        Stored::read(&secret, &ROTATION, now)
    }

    #[test]
    fn a_certificate_is_replaced_after_two_thirds_of_its_lifetime() {
        let first = replaced(None, 1000);
        assert_eq!(first.current(&ROTATION, 1000), &first.newest);
        assert!(!first.is_due(&ROTATION, 1599) && first.is_due(&ROTATION, 1600));
        let second = replaced(Some(&first), 1600);
        assert_eq!(second.previous.as_ref(), Some(&first.newest));
        assert!(second.authorities().starts_with(&second.newest.authority));
        assert!(second.authorities().ends_with(&first.newest.authority));
        // The predecessor is served until the newest has settled.
        assert_eq!(second.current(&ROTATION, 1629), &first.newest);
        assert_eq!(second.current(&ROTATION, 1630), &second.newest);
        assert_eq!(after_a_secret(&second, 1700), Some(second.clone()));
        let third = replaced(Some(&second), 2200);
        assert_eq!(third.previous.as_ref(), Some(&second.newest));
        assert_eq!(third.authorities().matches("BEGIN CERTIFICATE").count(), 2);
    }

    #[test]
    fn expired_and_unreadable_certificates_are_not_used() {
        let first = replaced(None, 1000);
        assert_eq!(after_a_secret(&first, 1899), Some(first.clone()));
        assert_eq!(after_a_secret(&first, 1900), None);
        // It would expire before its successor has settled.
        assert_eq!(replaced(Some(&first), 1880).previous, None);
        let mut secret = Secret::default();
        assert_eq!(Stored::read(&secret, &ROTATION, 1000), None);
        first.write(&mut secret);
        secret.metadata.annotations.as_mut().unwrap().insert(ISSUED.into(), "x".into());
        assert_eq!(Stored::read(&secret, &ROTATION, 1000), None);
        assert!(!format!("{first:?}").contains("KEY"));
    }
}
