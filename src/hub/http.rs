//! Requests over HTTP by ureq, and one clear line for every way in which they fail.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::{Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::error::{Error, Result};

/// Longest answer of the hub's API; its longest lists are far below.
const MAX_JSON: u64 = 64 << 20;

/// Why a request did not give what it was made for.
pub(super) struct Failure {
    /// The reason, and what to do about it.
    pub what: String,
    /// Whether another attempt may help.
    pub may_retry: bool,
}

impl Failure {
    pub(super) fn final_(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), may_retry: false }
    }

    pub(super) fn passing(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), may_retry: true }
    }

    pub(super) fn at(self, url: &str) -> Error {
        Error::Fetch { from: url.to_owned(), what: self.what }
    }
}

/// Makes requests, with the token where it belongs. Certificates are trusted as the system says (`SSL_CERT_FILE`), and the
/// proxies of the environment are used.
pub(super) struct Client<'a> {
    agent: Agent,
    token: Option<&'a str>,
    endpoint: &'a str,
    pub(super) patience: Duration,
}

impl<'a> Client<'a> {
    pub(super) fn new(token: Option<&'a str>, endpoint: &'a str, patience: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("gracekv/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(patience))
            .timeout_recv_response(Some(patience))
            .timeout_per_read(Some(patience))
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build());
        Client { agent: config.build().into(), token, endpoint, patience }
    }

    /// Asks for `url` with these headers. Statuses are left to the caller.
    pub(super) fn get(&self, url: &str, headers: &[(&str, String)]) -> std::result::Result<Response<Body>, Failure> {
        let request = headers.iter().fold(self.agent.get(url), |r, (name, value)| r.header(*name, value));
        match self.token_for(url) {
            Some(token) => request.header("Authorization", format!("Bearer {token}")).call(),
            None => request.call(),
        }
        .map_err(|e| failure(&e))
    }

    /// The headers that a GET would have.
    pub(super) fn head(&self, url: &str) -> std::result::Result<Response<Body>, Failure> {
        let request = self.agent.head(url);
        match self.token_for(url) {
            Some(token) => request.header("Authorization", format!("Bearer {token}")).call(),
            None => request.call(),
        }
        .map_err(|e| failure(&e))
    }

    /// The JSON behind `url`.
    ///
    /// # Errors
    /// [`Error::Fetch`] for anything else than JSON.
    pub(super) fn json(&self, url: &str) -> Result<Value> {
        let ask = || {
            let mut answer = self.get(url, &[("Accept", "application/json".to_owned())])?;
            if answer.status() != StatusCode::OK {
                return Err(refused(answer.status()));
            }
            let mut reader = answer.body_mut().with_config().limit(MAX_JSON).reader();
            let (start, mut body, mut chunk) = (Instant::now(), Vec::new(), vec![0; 1 << 16]);
            loop {
                match reader.read(&mut chunk).map_err(|e| Failure::passing(e.to_string()))? {
                    0 => break,
                    n => body.extend_from_slice(&chunk[..n]),
                }
                if start.elapsed() > 4 * self.patience {
                    return Err(Failure::passing("the server is too slow"));
                }
            }
            serde_json::from_slice(&body).map_err(|e| Failure::final_(format!("the answer is no JSON: {e}")))
        };
        ask().map_err(|f| f.at(url))
    }

    /// The token is the hub's: no other server is told it.
    fn token_for(&self, url: &str) -> Option<&str> {
        self.token.filter(|_| url.starts_with(self.endpoint))
    }
}

/// What a status other than success means.
pub(super) fn refused(status: StatusCode) -> Failure {
    let n = status.as_u16();
    let why = match n {
        401 | 403 => "it does not exist, or it is private or gated; give a token with -hft or HF_TOKEN",
        404 => "there is no such repository or file; check the name",
        429 => "too many requests; try again later, or give a token with -hft",
        500.. => "the server has a problem; try again later",
        _ => "the server does not give it",
    };
    Failure { what: format!("GET failed ({n}): {why}"), may_retry: n == 429 || n >= 500 }
}

/// What it means that no answer came.
fn failure(e: &ureq::Error) -> Failure {
    let no_network = |e: &dyn std::fmt::Display| {
        Failure::passing(format!("{e}; is there a network? --offline uses what is in the cache"))
    };
    match e {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
            Failure::final_(format!("it is no URL that can be fetched: {e}"))
        }
        ureq::Error::BodyExceedsLimit(_) | ureq::Error::TooManyRedirects => Failure::final_(e.to_string()),
        // TLS reports a server that it does not trust as an error of the connection.
        ureq::Error::Io(io) if io.to_string().contains("certificate") => {
            Failure::final_(format!("{io}; SSL_CERT_FILE names the certificates that are trusted"))
        }
        ureq::Error::Io(io) => no_network(io),
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => no_network(e),
        _ => Failure::passing(e.to_string()),
    }
}
