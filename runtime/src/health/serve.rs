//! The pages of a process: `/livez`, `/readyz` and `/metrics` over HTTP, and the look at the server that one of the
//! checks is about. Whoever asks changes nothing, and nothing here waits for the cluster to answer a page.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use super::{Found, Health, Moment};
use crate::Fault;
use crate::bus::Bus;
use crate::metrics;
use crate::metrics::names::{BUILD_INFO, Process};

/// How often the server is asked whether it is there.
const ASK: Duration = Duration::from_secs(2);
/// How long its last answer is good for.
const ANSWER_AGE: Duration = Duration::from_secs(10);

/// The pages can't be served.
#[derive(Debug, thiserror::Error)]
#[error(
    "health and metrics can't be served at {address}: {why}; name another address with --http or MILLRACE_HTTP"
)]
pub struct ServeError {
    /// Where.
    pub address: SocketAddr,
    /// Why not.
    pub why: std::io::Error,
}

/// The pages of a process, served until this is dropped.
pub struct Page {
    health: Health,
    is_served: bool,
    answered: Arc<Moment>,
    tasks: Vec<AbortHandle>,
}

impl Page {
    /// Serves the pages of a process at an address; nowhere if there is none.
    ///
    /// # Errors
    /// The address can't be listened at.
    pub async fn open(address: Option<SocketAddr>, of: Process, health: Health) -> Result<Self, ServeError> {
        let answered = Arc::new(Moment::default());
        let mut page = Self { health: health.clone(), is_served: false, answered, tasks: Vec::new() };
        let Some(address) = address else { return Ok(page) };
        let answered = page.answered.clone();
        health.add("log", move || check_answer(answered.age()));
        let failed = |why| ServeError { address, why };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        info!(%address, "health and metrics are served");
        let router = router(of, health);
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                warn!(%error, "health and metrics are not served any more");
            }
        });
        page.is_served = true;
        page.tasks.push(serving.abort_handle());
        Ok(page)
    }

    /// The health that it shows.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Whether anybody can see it.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.is_served
    }

    /// Waits for the cluster, and looks from then on whether its server answers. `None` if the process is told to stop
    /// before it is there.
    ///
    /// # Errors
    /// The cluster can't be used.
    pub async fn join(
        &mut self,
        joining: impl Future<Output = Result<Bus, Fault>>,
    ) -> Result<Option<Bus>, Fault> {
        let Some(joined) = self.health.until_told_to_stop(joining).await else { return Ok(None) };
        let bus = joined?;
        if self.is_served {
            let asking = tokio::spawn(ask(bus.clone(), self.answered.clone()));
            self.tasks.push(asking.abort_handle());
        }
        Ok(Some(bus))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Asks the server again and again for what every role may ask of it, and notes each answer.
async fn ask(bus: Bus, answered: Arc<Moment>) {
    let mut rounds = tokio::time::interval(ASK);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        match bus.control().query_account().await {
            Ok(_) => answered.now(),
            Err(error) => debug!(%error, "the server does not say that it is there"),
        }
    }
}

fn check_answer(age: Option<Duration>) -> Result<(), String> {
    match age {
        None => Err("not joined yet".into()),
        Some(age) if age > ANSWER_AGE => Err(format!("no answer for {} s", age.as_secs())),
        Some(_) => Ok(()),
    }
}

#[derive(Clone)]
struct Shown {
    of: Process,
    health: Health,
    /// It stands for as long as the pages do.
    _build: metrics::Level,
}

fn router(of: Process, health: Health) -> Router {
    let build = BUILD_INFO.level(&[env!("CARGO_PKG_VERSION"), &of.to_string()]);
    build.set(1.0);
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(page))
        .fallback(nothing)
        .with_state(Shown { of, health, _build: build })
}

async fn livez(State(shown): State<Shown>) -> Response {
    report("livez", &[shown.health.live()])
}

async fn readyz(State(shown): State<Shown>) -> Response {
    report("readyz", &shown.health.ready())
}

async fn page(State(shown): State<Shown>) -> Response {
    // What the checks find is on the page, too.
    drop(shown.health.ready());
    ([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], metrics::page(shown.of)).into_response()
}

async fn nothing() -> Response {
    (StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics\n").into_response()
}

/// What checks have found, as Kubernetes writes it.
fn report(name: &str, found: &[Found]) -> Response {
    let is_well = found.iter().all(|one| one.holds.is_ok());
    let line = |one: &Found| match &one.holds {
        Ok(()) => format!("[+]{} ok\n", one.name),
        Err(missing) => format!("[-]{} {missing}\n", one.name),
    };
    let mut text: String = found.iter().map(line).collect();
    text += &format!("{name} check {}\n", if is_well { "passed" } else { "failed" });
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_there_for_as_long_as_its_last_answer_is_good_for() {
        assert!(check_answer(None).is_err());
        assert!(check_answer(Some(ANSWER_AGE)).is_ok());
        assert_eq!(check_answer(Some(Duration::from_secs(12))), Err("no answer for 12 s".to_owned()));
    }
}
