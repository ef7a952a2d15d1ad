//! `builtin:echo`: finishes any task at once, for load and tests. What it does is all said by the task's parameters,
//! and the same task always fares the same: nothing is random, and nothing but the delay takes time.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::tool::schema_of;
use millrace_protocol::ids;
use millrace_protocol::plan::Work;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::work::Order;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::{Attempt, Capability, Outcome};

/// The variable that names the ledger: a file that gets a line for each time that a step was really done.
pub const LEDGER: &str = "MILLRACE_ECHO_LEDGER";

/// What the result's text is made of.
const TEXT: &str = "The mill race turns the wheel, and the wheel turns the stone. ";

/// The capability `echo`.
#[derive(Debug, Default)]
pub struct Echo {
    ledger: Option<PathBuf>,
}

/// How a task wants to fare.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    /// Milliseconds until it finishes; 0 by default.
    #[schemars(range(min = 0, max = 86_400_000))]
    delay_ms: u64,
    /// Length of the result's text in bytes; 64 by default.
    #[schemars(range(min = 0, max = 67_108_864))]
    bytes: u64,
    /// Share of the attempts that end in an error which another attempt may mend, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    fail_rate: f64,
    /// Share of the results that are marked to be rejected by their review, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    reject_rate: f64,
    /// Chooses which attempts fail and which results are rejected.
    seed: u64,
    /// Number of steps that are written to the journal, which share the delay.
    #[schemars(range(min = 0, max = 100_000))]
    steps: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { delay_ms: 0, bytes: 64, fail_rate: 0.0, reject_rate: 0.0, seed: 0, steps: 0 }
    }
}

impl Echo {
    /// Its name.
    pub const NAME: &str = "echo";

    /// With the ledger that the environment names, if it does.
    #[must_use]
    pub fn from_environment() -> Self {
        Self { ledger: std::env::var_os(LEDGER).filter(|path| !path.is_empty()).map(PathBuf::from) }
    }

    /// With this ledger.
    #[must_use]
    pub fn with_ledger(ledger: PathBuf) -> Self {
        Self { ledger: Some(ledger) }
    }

    async fn echo(&self, attempt: &mut Attempt<'_>) -> Result<Outcome, TaskError> {
        let order = attempt.order().clone();
        let Work::Task { task, attempt: number } = &order.work else {
            return Err(TaskError::new(ErrorKind::InvalidTask, "echo does tasks only"));
        };
        let parameters: Parameters = attempt.parameters()?;
        self.pass_time(attempt, &parameters, &order, &format!("{} {task} {number}", order.run)).await?;
        if parameters.chance(&order, task, *number, "fail") < parameters.fail_rate {
            return Err(TaskError::new(ErrorKind::Other, "echo was asked to fail at this rate"));
        }
        let rejected = parameters.chance(&order, task, *number, "reject") < parameters.reject_rate;
        Ok(Outcome::Result(TaskResult {
            summary: "echo".into(),
            output: text(usize::try_from(parameters.bytes).unwrap_or(usize::MAX)),
            data: rejected.then(|| json!({"reject": true})),
            ..TaskResult::default()
        }))
    }

    async fn pass_time(
        &self,
        attempt: &mut Attempt<'_>,
        parameters: &Parameters,
        order: &Order,
        name: &str,
    ) -> Result<(), TaskError> {
        let delay = Duration::from_millis(parameters.delay_ms);
        if parameters.steps == 0 {
            pause(delay).await;
            return Ok(());
        }
        let share = delay / u32::try_from(parameters.steps).unwrap_or(u32::MAX);
        for step in 1..=parameters.steps {
            let body = async {
                pause(share).await;
                self.write_down(&format!("{name} {step}\n"))?;
                Ok(step)
            };
            attempt.step(&format!("echo.{step}"), body).await?;
            tracing::debug!(run = %order.run, step, "echo did a step");
        }
        Ok(())
    }

    /// Adds a line to the ledger, in one write, so that lines of several processes do not mix.
    fn write_down(&self, line: &str) -> Result<(), TaskError> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        append(ledger, line).map_err(|error| {
            TaskError::new(
                ErrorKind::Other,
                format!("the ledger {} can't be written: {error}", ledger.display()),
            )
        })
    }
}

impl Capability for Echo {
    fn describe(&self) -> CapabilityDescription {
        CapabilityDescription {
            parameters: Some(schema_of::<Parameters>()),
            ..CapabilityDescription::new(
                ids::Capability::new(Self::NAME).expect("it is letters"),
                "For load and tests: finishes any task at once with a fixed text.",
            )
        }
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt<'_>) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        self.echo(attempt).boxed()
    }
}

impl Parameters {
    /// A number from 0 up to 1 that this attempt always gets for this purpose.
    fn chance(&self, order: &Order, task: &ids::TaskId, attempt: u32, purpose: &str) -> f64 {
        let (run, task) = (order.run.as_str(), task.as_str());
        let text = [run, "/", task, "/", purpose].into_iter().flat_map(str::bytes);
        let bytes = text.chain(self.seed.to_le_bytes()).chain(attempt.to_le_bytes());
        // FNV-1a, and then the mixing of SplitMix64, without which neighbours would get neighbouring numbers.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((hash ^ (hash >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

async fn pause(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

fn text(bytes: usize) -> String {
    let mut text = TEXT.repeat(bytes / TEXT.len() + 1);
    text.truncate(bytes);
    text
}

fn append(ledger: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(ledger)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        let order = json!({
            "run": "r", "lane": 0, "work": {"Task": {"task": "t", "attempt": 1}}, "mission": "", "objective": "",
            "capability": "echo"
        });
        serde_json::from_value(order).unwrap()
    }

    fn chance(seed: u64, attempt: u32, purpose: &str) -> f64 {
        let task = ids::TaskId::new("t").unwrap();
        Parameters { seed, ..Parameters::default() }.chance(&order(), &task, attempt, purpose)
    }

    #[test]
    fn the_same_attempt_always_fares_the_same_and_rates_hold() {
        assert_eq!(chance(7, 1, "fail").to_bits(), chance(7, 1, "fail").to_bits());
        assert!((chance(7, 1, "fail") - chance(7, 1, "reject")).abs() > f64::EPSILON);
        for rate in [0.1, 0.5, 0.9] {
            let failing = (1..=10_000).filter(|&attempt| chance(3, attempt, "fail") < rate).count();
            assert!((failing as f64 / 10_000.0 - rate).abs() < 0.02, "{failing} of 10000 at {rate}");
        }
        assert!((1..=10_000).all(|attempt| (0.0..1.0).contains(&chance(0, attempt, "fail"))));
    }

    #[test]
    fn the_text_is_as_long_as_asked_for() {
        for bytes in [0, 1, 64, 1_000_000] {
            assert_eq!(text(bytes).len(), bytes);
        }
    }

    #[test]
    fn wrong_parameters_are_told_by_name_with_what_was_expected() {
        let schema = Echo::default().describe().parameters.unwrap();
        let told = |value| millrace_agent::tool::check(&schema, &value).unwrap_err();
        assert_eq!(told(json!({"delay_ms": "soon"})), "'delay_ms' must be an integer, not string");
        assert_eq!(told(json!({"fail_rate": 2})), "'fail_rate' must be at most 1, not 2");
        assert!(
            told(json!({"dealy_ms": 1})).starts_with("'dealy_ms' is not known; did you mean 'delay_ms'?")
        );
        assert!(millrace_agent::tool::check(&schema, &json!({"reject_rate": 0.5, "steps": 3})).is_ok());
    }
}
