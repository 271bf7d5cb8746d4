//! Who may be which client.

use poem::Request;
use poem::http::header::AUTHORIZATION;
use poem::http::{HeaderMap, StatusCode};
use subtle::ConstantTimeEq;

use super::json::ApiError;
use super::peer::Peer;
use crate::ClientName;

/// Who calls, and the client that it says it is.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The process, as the kernel states it. Only known on a Unix socket served by
    /// [`serve`](super::serve).
    pub peer: Option<Peer>,
    /// The request: its headers, its address, and the data that was attached to it.
    pub request: &'a Request,
    /// Whose tasks it asks for, or whose result it brings.
    pub client: &'a ClientName,
}

/// Decides about each request to a [`TaskServer`](super::TaskServer). A function
/// `Fn(&Caller<'_>) -> Result<(), ApiError>` is one.
pub trait Authenticate: Send + Sync + 'static {
    /// Whether `caller` may act for the client that it names. Must not wait.
    ///
    /// # Errors
    /// The answer to the caller.
    fn authenticate(&self, caller: &Caller<'_>) -> Result<(), ApiError>;
}

impl<F> Authenticate for F
where
    F: Fn(&Caller<'_>) -> Result<(), ApiError> + Send + Sync + 'static,
{
    fn authenticate(&self, caller: &Caller<'_>) -> Result<(), ApiError> {
        self(caller)
    }
}

/// Lets everybody be any client. For sockets whose permissions say enough.
#[derive(Clone, Copy, Debug)]
pub struct Anyone;

impl Authenticate for Anyone {
    fn authenticate(&self, _: &Caller<'_>) -> Result<(), ApiError> {
        Ok(())
    }
}

/// Lets root's processes, and those of the server's own user, be any client. They have to call over
/// a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct SameUser;

impl Authenticate for SameUser {
    fn authenticate(&self, caller: &Caller<'_>) -> Result<(), ApiError> {
        let own = rustix::process::geteuid().as_raw();
        match caller.peer {
            Some(peer) if peer.uid == 0 || peer.uid == own => Ok(()),
            Some(peer) => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                format!("user {} is not accepted: root and user {own} are", peer.uid),
            )),
            None => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "the calling process is not known: call over the Unix socket",
            )),
        }
    }
}

/// The fewest bytes of a token.
const SHORTEST: usize = 16;

/// Lets those be any client who send `Authorization: Bearer` and the token. How long the comparison
/// takes tells nothing of the token but its length.
#[derive(Clone)]
pub struct BearerToken(Vec<u8>);

/// A token that is too easy to guess, or that no header can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token of {bytes} bytes is not accepted: it needs {SHORTEST} at least, all of them visible \
     ASCII characters"
)]
pub struct WeakToken {
    /// Its length.
    pub bytes: usize,
}

// A derived implementation would show the token.
impl std::fmt::Debug for BearerToken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("BearerToken").finish_non_exhaustive()
    }
}

impl BearerToken {
    /// Accepts this token.
    ///
    /// # Errors
    /// It is shorter than 16 bytes, or has other characters than visible ASCII ones.
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

impl Authenticate for BearerToken {
    fn authenticate(&self, caller: &Caller<'_>) -> Result<(), ApiError> {
        if self.is_in(caller.request.headers()) {
            return Ok(());
        }
        let problem = "the token is missing or wrong: `Authorization: Bearer` with it is accepted";
        Err(ApiError::new(StatusCode::UNAUTHORIZED, problem))
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
