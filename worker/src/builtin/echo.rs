//! The capability `echo`, for load tests and tests: it finishes any task at once. The task's parameters control what it
//! does. It is deterministic: the same attempt always has the same outcome, and only the configured delay takes time.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::tool::schema_of;
use millrace_protocol::child::TaskEnd;
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::ids;
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::TaskLimits;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::wait::{WaitCondition, WaitEnd};
use millrace_protocol::work::{Assignment, Order};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Answer, Attempt, Capability, CapabilityOutcome, ChildTask, approval_question, input_question};

/// The environment variable with the path of the ledger: a file that gets a line each time a step is executed (not
/// replayed).
pub const LEDGER: &str = "MILLRACE_ECHO_LEDGER";

/// The text that results repeat.
const TEXT: &str = "The mill race turns the wheel, and the wheel turns the stone. ";

/// The maximum size of a step of `journal_bytes`.
const JOURNAL_STEP: u64 = 10_000;

/// The capability `echo`.
#[derive(Debug, Default)]
pub struct EchoCapability {
    ledger: Option<PathBuf>,
}

/// The parameters of a task.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[schemars(rename = "Parameters")]
#[serde(default, deny_unknown_fields)]
struct EchoParameters {
    /// Milliseconds until it finishes; 0 by default.
    #[schemars(range(min = 0, max = 86_400_000))]
    delay_ms: u64,
    /// Length of the result's text in bytes; 64 by default.
    #[schemars(range(min = 0, max = 67_108_864))]
    bytes: u64,
    /// Share of the attempts that end in a retryable error, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    fail_rate: f64,
    /// Share of the results that are marked for rejection by their review, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    reject_rate: f64,
    /// Seed that selects the attempts that fail and the results that are rejected.
    seed: u64,
    /// Number of journaled steps, which share the delay.
    #[schemars(range(min = 0, max = 100_000))]
    steps: u64,
    /// Number of bytes that it journals first, in steps of 10,000 bytes.
    #[schemars(range(min = 0, max = 67_108_864))]
    journal_bytes: u64,
    /// Milliseconds for which the attempt is parked then.
    #[schemars(range(min = 0, max = 86_400_000))]
    park_ms: u64,
    /// The name of an event for which the attempt is parked then; none by default.
    await_event: String,
    /// Questions for which the attempt is parked then, all at once; the result's data is the list of the answers.
    ask: Vec<String>,
    /// If true, the first end of the event and the questions is enough; the result's data lists which of them were withdrawn.
    first: bool,
    /// If true, the attempt is parked for the approval of an action that is one journaled step, `echo.action`, with the arguments
    /// `{"text": …}`; the result's data is what ran.
    approve: bool,
    /// Tasks that it delegates at once and waits for. The result's data lists their ends: the data of a result, or the name of
    /// another end.
    delegate: Vec<EchoChild>,
    /// If true, the result's data is a digest of the task's name and of the digests in the results that it depends on.
    digest: bool,
}

/// A task that echo delegates.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[schemars(rename = "Child")]
#[serde(deny_unknown_fields)]
struct EchoChild {
    /// The capability; echo by default.
    #[serde(default)]
    capability: Option<String>,
    /// Its parameters.
    #[serde(default)]
    parameters: TaskParameters,
    /// The number of its attempts; 1 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = 100))]
    attempts: Option<u32>,
    /// Milliseconds that an attempt may take.
    #[serde(default)]
    run_ms: Option<u64>,
}

impl Default for EchoParameters {
    fn default() -> Self {
        Self {
            delay_ms: 0,
            bytes: 64,
            fail_rate: 0.0,
            reject_rate: 0.0,
            seed: 0,
            steps: 0,
            journal_bytes: 0,
            park_ms: 0,
            await_event: String::new(),
            ask: Vec::new(),
            first: false,
            approve: false,
            delegate: Vec::new(),
            digest: false,
        }
    }
}

impl EchoCapability {
    /// The name of the capability.
    pub const NAME: &str = "echo";

    /// Creates the capability with the ledger that the environment names, if any.
    #[must_use]
    pub fn from_environment() -> Self {
        Self { ledger: std::env::var_os(LEDGER).filter(|path| !path.is_empty()).map(PathBuf::from) }
    }

    /// Creates the capability with a ledger.
    #[must_use]
    pub fn with_ledger(ledger: PathBuf) -> Self {
        Self { ledger: Some(ledger) }
    }

    async fn run_echo(&self, attempt: &mut Attempt<'_>) -> Result<CapabilityOutcome, TaskError> {
        let order = attempt.order().clone();
        let Assignment::Task { task, attempt: number, .. } = &order.assignment else {
            return Err(TaskError::new(ErrorKind::InvalidTask, "echo does tasks only"));
        };
        let parameters: EchoParameters = attempt.parse_parameters()?;
        journal_as_requested(attempt, parameters.journal_bytes).await?;
        let mut data = park_as_requested(attempt, &parameters).await?;
        if parameters.approve {
            data = Some(self.act_if_approved(attempt, &format!("{} {task} {number}", order.run)).await?);
        }
        let children = delegate_as_requested(attempt, &parameters).await?;
        let digest = if parameters.digest { Some(digest_inputs(attempt, &order, task).await?) } else { None };
        self.sleep_as_requested(attempt, &parameters, &order, &format!("{} {task} {number}", order.run))
            .await?;
        if parameters.pseudo_random_fraction(&order, task, *number, "fail") < parameters.fail_rate {
            return Err(TaskError::new(ErrorKind::Other, "failed because of fail_rate"));
        }
        let rejected =
            parameters.pseudo_random_fraction(&order, task, *number, "reject") < parameters.reject_rate;
        Ok(CapabilityOutcome::Result(TaskResult {
            summary: "echo".into(),
            output: filler_text(usize::try_from(parameters.bytes).unwrap_or(usize::MAX)),
            data: rejected.then(|| json!({"reject": true})).or(digest).or(children).or(data),
            ..TaskResult::default()
        }))
    }

    async fn sleep_as_requested(
        &self,
        attempt: &mut Attempt<'_>,
        parameters: &EchoParameters,
        order: &Order,
        name: &str,
    ) -> Result<(), TaskError> {
        let delay = Duration::from_millis(parameters.delay_ms);
        if parameters.steps == 0 {
            sleep_for(delay).await;
            return Ok(());
        }
        let share = delay / u32::try_from(parameters.steps).unwrap_or(u32::MAX);
        for step in 1..=parameters.steps {
            let body = async {
                sleep_for(share).await;
                self.append_to_ledger(&format!("{name} {step}\n"))?;
                Ok(step)
            };
            attempt.run_step(&format!("echo.{step}"), body).await?;
            tracing::debug!(run = %order.run, step, "echo executed a step");
        }
        Ok(())
    }

    /// Asks for the approval of an action, and carries it out as it was approved.
    async fn act_if_approved(&self, attempt: &mut Attempt<'_>, name: &str) -> Result<Value, TaskError> {
        let proposed = json!({"text": "proposed"});
        let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": false});
        let question =
            approval_question("echo_action", &proposed, "Appends a line to the ledger.", Some(&schema));
        let arguments = match attempt.ask("echo.approval", question).await? {
            Answer::Approve => proposed,
            Answer::Edit { arguments } => parse_foreign_json(&arguments).unwrap_or_default(),
            refused @ (Answer::Reject { .. }
            | Answer::Respond { .. }
            | Answer::Answer { .. }
            | Answer::Decline
            | Answer::Pass
            | Answer::Fail { .. }) => {
                return Ok(json!({"refused": refused.to_string()}));
            }
        };
        let body = async {
            self.append_to_ledger(&format!(
                "{name} action {}\n",
                arguments["text"].as_str().unwrap_or_default()
            ))?;
            Ok(json!({"ran": arguments["text"]}))
        };
        attempt.run_step("echo.action", body).await
    }

    /// Appends a line to the ledger, in one write, so that lines of several processes do not mix.
    fn append_to_ledger(&self, line: &str) -> Result<(), TaskError> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        append_line(ledger, line).map_err(|error| {
            TaskError::new(ErrorKind::Other, format!("can't write the ledger {}: {error}", ledger.display()))
        })
    }
}

/// Journals steps with this number of bytes in total.
async fn journal_as_requested(attempt: &mut Attempt<'_>, bytes: u64) -> Result<(), TaskError> {
    for step in 0..bytes.div_ceil(JOURNAL_STEP) {
        let length = JOURNAL_STEP.min(bytes - step * JOURNAL_STEP);
        let text = async { Ok(filler_text(usize::try_from(length).unwrap_or(usize::MAX))) };
        attempt.run_step(&format!("echo.journal.{step}"), text).await?;
    }
    Ok(())
}

/// Parks the attempt for a time, for an event and for answers. Returns the answers, or else the data of the event.
async fn park_as_requested(
    attempt: &mut Attempt<'_>,
    parameters: &EchoParameters,
) -> Result<Option<Value>, TaskError> {
    if parameters.park_ms > 0 {
        attempt.sleep_for("echo.sleep", Duration::from_millis(parameters.park_ms)).await?;
    }
    let question = |(number, text): (usize, &String)| {
        (format!("echo.ask.{number}"), input_question(text, Vec::new(), None))
    };
    if parameters.first {
        let name = parameters.await_event.clone();
        let event = ("echo.event".to_owned(), WaitCondition::Event { name, until: None });
        let questions = parameters.ask.iter().enumerate().map(question);
        let questions = questions.map(|(key, question)| (key, WaitCondition::Answer(Box::new(question))));
        let ends = attempt.wait_for_first(std::iter::once(event).chain(questions).collect()).await?;
        return Ok(Some(ends.iter().map(|end| *end == WaitEnd::Withdrawn).collect()));
    }
    let event = match parameters.await_event.as_str() {
        "" => None,
        event => attempt.wait_for_event("echo.event", event, None).await?,
    };
    if parameters.ask.is_empty() {
        return Ok(event);
    }
    let answers = attempt.ask_all(parameters.ask.iter().enumerate().map(question).collect()).await?;
    let value = |answer: &Answer| match answer {
        Answer::Answer { value } => parse_foreign_json(value).unwrap_or_default(),
        Answer::Approve
        | Answer::Edit { .. }
        | Answer::Reject { .. }
        | Answer::Respond { .. }
        | Answer::Decline
        | Answer::Pass
        | Answer::Fail { .. } => Value::Null,
    };
    Ok(Some(answers.iter().map(value).collect()))
}

/// Delegates tasks and waits for their ends, in the order of the tasks.
async fn delegate_as_requested(
    attempt: &mut Attempt<'_>,
    parameters: &EchoParameters,
) -> Result<Option<Value>, TaskError> {
    if parameters.delegate.is_empty() {
        return Ok(None);
    }
    let mut children = Vec::new();
    for (index, child) in parameters.delegate.iter().enumerate() {
        let name = child.capability.as_deref().unwrap_or(EchoCapability::NAME);
        let capability = ids::Capability::new(name)
            .map_err(|invalid| TaskError::new(ErrorKind::InvalidTask, invalid.to_string()))?;
        let default = TaskLimits::default();
        children.push(ChildTask {
            parameters: child.parameters.clone(),
            limits: TaskLimits {
                max_attempts: child.attempts.unwrap_or(1),
                run_time: child.run_ms.map_or(default.run_time, Duration::from_millis),
                ..default
            },
            ..ChildTask::new(capability, format!("delegated task {index}"))
        });
    }
    let ends = attempt.delegate_all("echo.delegate", children).await?;
    let ends = ends.into_iter().map(|end| match end {
        Ok(result) => result.data.unwrap_or_else(|| json!("completed")),
        Err(lost) => json!(lost.end.as_ref().map_or("unknown", TaskEnd::name)),
    });
    Ok(Some(Value::Array(ends.collect())))
}

impl Capability for EchoCapability {
    fn describe(&self) -> CapabilityDescription {
        CapabilityDescription {
            parameters: Some(schema_of::<EchoParameters>()),
            ..CapabilityDescription::new(
                ids::Capability::new(Self::NAME).expect("a valid name"),
                "For load tests and tests: finishes any task at once with a fixed text.",
            )
        }
    }

    fn run<'a>(
        &'a self,
        attempt: &'a mut Attempt<'_>,
    ) -> BoxFuture<'a, Result<CapabilityOutcome, TaskError>> {
        self.run_echo(attempt).boxed()
    }
}

impl EchoParameters {
    /// Returns a number from 0 to 1 that depends on the seed, the attempt and the purpose only.
    fn pseudo_random_fraction(&self, order: &Order, task: &ids::TaskId, attempt: u32, purpose: &str) -> f64 {
        let (run, task) = (order.run.as_str(), task.as_str());
        let text = [run, "/", task, "/", purpose].into_iter().flat_map(str::bytes);
        let bytes = text.chain(self.seed.to_le_bytes()).chain(attempt.to_le_bytes());
        // FNV-1a, then the finalizer of SplitMix64: without it, similar inputs would get similar numbers.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((hash ^ (hash >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

async fn sleep_for(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

/// Returns a digest of the task's name and of the digests of its inputs, in the order of their names.
async fn digest_inputs(
    attempt: &mut Attempt<'_>,
    order: &Order,
    task: &ids::TaskId,
) -> Result<serde_json::Value, TaskError> {
    let mut inputs = order.inputs.clone();
    inputs.sort_by(|a, b| a.task.cmp(&b.task));
    let mut text = task.to_string();
    for input in &inputs {
        let result = attempt.read_input_result(input).await?;
        let digest = result.data.as_ref().and_then(|data| data["digest"].as_str());
        text += &format!(" {}", digest.unwrap_or("none"));
    }
    Ok(json!({ "digest": fnv1a_hex(&text) }))
}

/// Returns the FNV-1a hash of a text (64 bit) in hexadecimal.
fn fnv1a_hex(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn filler_text(bytes: usize) -> String {
    let mut text = TEXT.repeat(bytes / TEXT.len() + 1);
    text.truncate(bytes);
    text
}

fn append_line(ledger: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(ledger)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_order() -> Order {
        let order = json!({
            "run": "r", "lane": 0, "work": {"Task": {"task": "t", "attempt": 1}}, "mission": "", "objective": "",
            "capability": "echo"
        });
        serde_json::from_value(order).unwrap()
    }

    fn sample_chance(seed: u64, attempt: u32, purpose: &str) -> f64 {
        let task = ids::TaskId::new("t").unwrap();
        EchoParameters { seed, ..EchoParameters::default() }.pseudo_random_fraction(
            &build_order(),
            &task,
            attempt,
            purpose,
        )
    }

    #[test]
    fn outcomes_are_deterministic_and_match_the_rates() {
        assert_eq!(sample_chance(7, 1, "fail").to_bits(), sample_chance(7, 1, "fail").to_bits());
        assert!((sample_chance(7, 1, "fail") - sample_chance(7, 1, "reject")).abs() > f64::EPSILON);
        for rate in [0.1, 0.5, 0.9] {
            let failing = (1..=10_000).filter(|&attempt| sample_chance(3, attempt, "fail") < rate).count();
            assert!((failing as f64 / 10_000.0 - rate).abs() < 0.02, "{failing} of 10000 at {rate}");
        }
        assert!((1..=10_000).all(|attempt| (0.0..1.0).contains(&sample_chance(0, attempt, "fail"))));
    }

    #[test]
    fn the_text_has_the_requested_length() {
        for bytes in [0, 1, 64, 1_000_000] {
            assert_eq!(filler_text(bytes).len(), bytes);
        }
    }

    #[test]
    fn invalid_parameters_are_named_with_what_was_expected() {
        let schema = EchoCapability::default().describe().parameters.unwrap();
        let error = |value| millrace_agent::tool::check_value_against_schema(&schema, &value).unwrap_err();
        assert_eq!(error(json!({"delay_ms": "soon"})), "'delay_ms' must be an integer, not string");
        assert_eq!(error(json!({"fail_rate": 2})), "'fail_rate' must be at most 1, not 2");
        assert!(error(json!({"dealy_ms": 1})).starts_with("'dealy_ms' is unknown; did you mean 'delay_ms'?"));
        assert!(
            millrace_agent::tool::check_value_against_schema(
                &schema,
                &json!({"reject_rate": 0.5, "steps": 3})
            )
            .is_ok()
        );
    }
}
