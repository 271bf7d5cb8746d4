//! The secret that callers over TCP must send.

use poem::http::HeaderMap;
use poem::http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

/// Shortest token, in bytes.
const SHORTEST: usize = 16;

/// The token of `Authorization: Bearer`. The comparison takes the same time for every value, so it reveals only the
/// token's length.
#[derive(Clone)]
pub struct BearerToken(Vec<u8>);

/// The token is too short to be safe, or cannot stand in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token of {bytes} bytes; expected at least {SHORTEST} visible ASCII characters")]
pub struct WeakToken {
    /// Length of the token.
    pub bytes: usize,
}

// A derived implementation would show the token.
impl std::fmt::Debug for BearerToken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("BearerToken").finish_non_exhaustive()
    }
}

impl BearerToken {
    /// Takes `token` as the expected secret.
    ///
    /// # Errors
    /// The token is shorter than 16 bytes, or contains characters other than visible ASCII.
    pub fn new(token: &str) -> Result<Self, WeakToken> {
        if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(WeakToken { bytes: token.len() });
        }
        Ok(Self(token.as_bytes().to_owned()))
    }

    /// Whether the headers carry the token.
    #[must_use]
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        headers
            .get(AUTHORIZATION)
            .and_then(|value| value.as_bytes().split_at_checked(b"Bearer ".len()))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
            .is_some_and(|(_, token)| bool::from(token.ct_eq(&self.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = BearerToken::new("0123456789abcdef").unwrap();
        let accepts = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            token.is_in(&headers)
        };
        assert!(accepts("Bearer 0123456789abcdef"));
        assert!(accepts("bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "0123456789abcdef",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcdeF",
            "Basic 0123456789abcdef",
        ] {
            assert!(!accepts(wrong), "{wrong}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn weak_tokens_are_refused() {
        assert_eq!(BearerToken::new("").unwrap_err().bytes, 0);
        assert!(BearerToken::new("fifteen bytes..").is_err());
        assert!(BearerToken::new("with a blank in it").is_err());
    }
}
