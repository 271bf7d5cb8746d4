//! Limits the size of an API server's answers, so that a wrong or hostile server cannot exhaust this program's memory.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use tower::{BoxError, Layer, Service};

/// The most bytes that an API server may send:
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// in one answer, such as a page of a list;
    pub(crate) answer: usize,
    /// in all pages of one list;
    pub(crate) list: usize,
    /// in one event of a watch.
    pub(crate) event: usize,
}

impl Bounds {
    /// A page has 500 objects. Kubernetes supports 150,000 pods of about 7 KiB each. API servers store objects of up to
    /// 3 MiB.
    pub(crate) const DEFAULT: Self = Self { answer: 64 << 20, list: 1 << 30, event: 8 << 20 };
}

/// An answer that is larger than accepted.
#[derive(Debug, thiserror::Error)]
#[error("{what} of more than {} MiB: at most that is accepted", .bytes >> 20)]
struct TooLarge {
    what: &'static str,
    bytes: usize,
}

/// A service that applies [`Bounds`] to answers.
#[derive(Clone, Debug)]
pub(crate) struct Bounded<S = ()> {
    service: S,
    bounds: Bounds,
    /// Bytes of the pages received so far, by the list's path.
    lists: Arc<Mutex<HashMap<String, Arc<AtomicUsize>>>>,
}

impl Bounded {
    pub(crate) fn by(bounds: Bounds) -> Self {
        Self { service: (), bounds, lists: Arc::default() }
    }
}

impl<S> Layer<S> for Bounded {
    type Service = Bounded<S>;

    fn layer(&self, service: S) -> Bounded<S> {
        Bounded { service, bounds: self.bounds, lists: Arc::clone(&self.lists) }
    }
}

impl<S> Bounded<S> {
    /// The counter for the answer to a request.
    fn counter(&self, uri: &Uri) -> Counter {
        let parameters = || uri.query().unwrap_or_default().split('&');
        let has = |name: &str| {
            parameters().any(|one| one.split_once('=').is_some_and(|(key, _)| key == name))
        };
        if has("watch") {
            return Counter::Event(0);
        }
        let mut pages = None;
        if has("limit") {
            let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
            let counter = lists.entry(uri.path().to_owned()).or_default();
            if !has("continue") {
                *counter = Arc::default();
            }
            pages = Some(Arc::clone(counter));
        }
        Counter::Answer { seen: 0, pages }
    }
}

impl<S, Q, B> Service<Request<Q>> for Bounded<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<BoundedBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (counter, bounds) = (self.counter(request.uri()), self.bounds);
        let answer = self.service.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| BoundedBody { body, counter, bounds })) })
    }
}

/// Counts received bytes.
#[derive(Debug)]
enum Counter {
    Answer {
        seen: usize,
        /// The total of all pages of the list.
        pages: Option<Arc<AtomicUsize>>,
    },
    /// The bytes of the current event. Each event is a line.
    Event(usize),
}

impl Counter {
    fn add(&mut self, bytes: &[u8], bounds: &Bounds) -> Result<(), TooLarge> {
        let within = |what, seen: usize, most: usize| {
            if seen > most { Err(TooLarge { what, bytes: most }) } else { Ok(()) }
        };
        match self {
            Self::Answer { seen, pages } => {
                *seen += bytes.len();
                within("an answer", *seen, bounds.answer)?;
                let Some(pages) = pages else { return Ok(()) };
                let before = pages.fetch_add(bytes.len(), Ordering::Relaxed);
                within("a list", before.saturating_add(bytes.len()), bounds.list)
            }
            Self::Event(seen) => {
                let mut lines = bytes.split(|byte| *byte == b'\n');
                let first = *seen + lines.next().map_or(0, <[u8]>::len);
                let longest = lines.clone().map(<[u8]>::len).fold(first, usize::max);
                *seen = lines.next_back().map_or(first, <[u8]>::len);
                within("an event", longest, bounds.event)
            }
        }
    }
}

/// A body that fails when it exceeds its bound.
#[derive(Debug)]
pub(crate) struct BoundedBody<B> {
    body: B,
    counter: Counter,
    bounds: Bounds,
}

impl<B> Body for BoundedBody<B>
where
    B: Body<Data = bytes::Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = bytes::Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let counted = frame.map_err(Into::into).and_then(|frame| {
            if let Some(bytes) = frame.data_ref() {
                this.counter.add(bytes, &this.bounds)?;
            }
            Ok(frame)
        });
        Poll::Ready(Some(counted))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { answer: 10, list: 25, event: 4 };

    fn counter(bounded: &Bounded, uri: &str) -> Counter {
        bounded.counter(&uri.parse().unwrap())
    }

    #[test]
    fn an_answer_and_all_pages_of_a_list_are_bounded() {
        let bounded = Bounded::by(BOUNDS);
        let mut answer = counter(&bounded, "/api/v1/pods?");
        answer.add(&[0; 6], &BOUNDS).unwrap();
        let said = answer.add(&[0; 5], &BOUNDS).unwrap_err().to_string();
        assert!(said.starts_with("an answer of more than"), "{said}");
        for _ in 0..2 {
            counter(&bounded, "/api/v1/pods?&limit=500").add(&[0; 10], &BOUNDS).unwrap();
            let next = "/api/v1/pods?&limit=500&continue=x";
            counter(&bounded, next).add(&[0; 10], &BOUNDS).unwrap();
            let said = counter(&bounded, next).add(&[0; 6], &BOUNDS).unwrap_err();
            assert_eq!(said.what, "a list");
            // Each list has its own total.
            counter(&bounded, "/api/v1/nodes?&limit=500").add(&[0; 10], &BOUNDS).unwrap();
        }
    }

    #[test]
    fn each_event_of_a_watch_is_bounded_and_not_all_of_them() {
        let bounded = Bounded::by(BOUNDS);
        let mut watch = counter(&bounded, "/api/v1/pods?&watch=true&limit=5");
        for _ in 0..100 {
            watch.add(b"234\n1", &BOUNDS).unwrap();
        }
        watch.add(b"234\n1234\n1", &BOUNDS).unwrap();
        assert_eq!(watch.add(b"2345", &BOUNDS).unwrap_err().what, "an event");
        let mut watch = counter(&bounded, "/api/v1/pods?&watch=true");
        assert!(watch.add(b"1\n12345\n1", &BOUNDS).is_err());
    }
}
