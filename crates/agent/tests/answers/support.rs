//! One task with a scripted model, whose requests are recorded.

use std::collections::BTreeMap;
use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{ModelFactory, Request};
use millrace_agent::session::tools::BuiltInToolNames;
use millrace_agent::session::{AgentHost, AgentSession, HostSettings, SessionEnvironment, SessionError};
use millrace_agent::sources::{OrderInputError, OrderInputs};
use millrace_agent::spec::AgentSpec;
use millrace_agent::turn::MemoryHost;
use millrace_protocol::ids::{Capability, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{Document, DocumentSet, ResourceAmounts, Work};
use millrace_protocol::result::{TaskResult, VerificationPolicy};
use millrace_protocol::wire;
use millrace_protocol::work::{InputResult, Order};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

pub const TARN: &str =
    "# Tarn 20\n\nThe case is made of steel.\nIt weighs 1.4 kg.\nIts battery lasts nine hours.\n";
pub const SKUA: &str = "# Skua probe\n\nIt works only with the base unit and needs firmware 4.2.\n";
pub const RESEARCH: &str = "\
name: research
description: Answers.
answer: findings
tools: [search_documents, read_document, list_completed_tasks, get_task_result, think]
";
pub const PRODUCER: &str = "\
name: producer
description: Reports.
answer: report
tools: [list_completed_tasks, get_task_result, think]
";

/// The log and the blob store of a run, in memory.
#[derive(Default)]
pub struct Store {
    pub results: BTreeMap<TaskId, TaskResult>,
    blobs: BTreeMap<String, Vec<u8>>,
}

impl Store {
    /// Stores documents.
    pub fn add_documents(&mut self, all: &[(&str, &str)]) -> DocumentSet {
        let name =
            |bytes: &[u8]| Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>();
        let mut documents = Vec::new();
        for (path, text) in all {
            let sha256 = name(text.as_bytes());
            self.blobs.insert(sha256.clone(), text.as_bytes().to_vec());
            documents.push(Document { path: (*path).into(), sha256, size: 0 });
        }
        let manifest = wire::encode_body(&documents);
        let count = u32::try_from(documents.len()).unwrap();
        let set = DocumentSet { manifest: name(&manifest), count, bytes: 0 };
        self.blobs.insert(set.manifest.clone(), manifest);
        set
    }
}

impl OrderInputs for Store {
    fn read_result<'a>(
        &'a self,
        input: &'a InputResult,
    ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        let result = self.results.get(&input.task).cloned();
        ready(result.ok_or_else(|| OrderInputError::Broken("not there".into()))).boxed()
    }

    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        ready(self.blobs.get(sha256).cloned().ok_or_else(|| OrderInputError::Broken("not there".into())))
            .boxed()
    }
}

/// One task with a scripted model.
pub struct ScriptedTask<'a> {
    pub capability: &'a str,
    pub ability: &'a str,
    pub objective: &'a str,
    pub mission: &'a str,
    pub documents: Vec<(&'a str, &'a str)>,
    pub inputs: Vec<(&'a str, TaskResult)>,
    /// The replies, in order; the last one repeats. One with `calls` or `text` is a whole turn, any other an answer.
    pub replies: Vec<Value>,
    /// What the verifier says of each claim that contains one of these texts: the probability that it is supported. `None` if
    /// there is no verifier.
    pub verifier: Option<Vec<(&'a str, f64)>>,
    /// The error of each request to the verifier, in place of its replies.
    pub verifier_error: Option<&'a str>,
    /// The consequence of verdicts that the run names.
    pub policy: Option<VerificationPolicy>,
    /// `true` if the result is the deliverable of the run.
    pub is_final: bool,
    /// The model that embeds documents and queries, if one does.
    pub embeddings: Option<String>,
    /// The cache of the machine.
    pub cache: Option<PathBuf>,
    /// The reservation of the attempt.
    pub allowance: ResourceAmounts,
    pub journal: MemoryHost,
    pub folder: TempDir,
}

/// The script of a verifier that knows the claims of the probe.
pub fn verifier_script(claims: &[(&str, f64)]) -> Value {
    let probe: Vec<Value> =
        serde_json::from_str(include_str!("../../../verification/data/probe.json")).unwrap();
    let text = |pair: &Value, name: &str| pair[name].as_str().unwrap().to_owned();
    let known = probe.iter().flat_map(|pair| {
        [("true", 0.9), ("false", 0.1)].map(|(name, yes)| (format!("Claim: {}", text(pair, name)), yes))
    });
    let own = claims.iter().map(|(claim, probability)| ((*claim).to_owned(), *probability));
    let rule = |(claim, yes): (String, f64)| {
        let reply = json!({"text": "Yes", "first_token": {"Yes": yes, "No": 1.0 - yes}});
        json!({"when": {"last": claim}, "reply": reply})
    };
    let rules: Vec<Value> = own.chain(known).map(rule).collect();
    json!({"ability": "small", "rules": rules, "ledger": "verifier.ledger"})
}

impl<'a> ScriptedTask<'a> {
    pub fn research(ability: &'a str, objective: &'a str, replies: Vec<Value>) -> Self {
        Self {
            capability: RESEARCH,
            ability,
            objective,
            mission: objective,
            documents: vec![("skua.md", SKUA), ("tarn.md", TARN)],
            inputs: Vec::new(),
            replies,
            verifier: None,
            verifier_error: None,
            policy: None,
            is_final: false,
            embeddings: None,
            cache: None,
            allowance: ResourceAmounts::default(),
            journal: MemoryHost::default(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn cassette(&self) -> PathBuf {
        self.folder.path().join("requests.jsonl")
    }

    /// The requests, in order.
    pub fn requests(&self) -> Vec<Request> {
        let lines = std::fs::read_to_string(self.cassette()).unwrap_or_default();
        let read = |line: &str| {
            let mut entry: Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(entry["request"].take()).unwrap()
        };
        lines.lines().map(read).collect()
    }

    /// The number of requests to the verifier.
    pub fn verifier_requests(&self) -> usize {
        let ledger = std::fs::read_to_string(self.folder.path().join("verifier.ledger"));
        ledger.unwrap_or_default().lines().count()
    }

    pub async fn run(&mut self) -> Result<TaskResult, SessionError> {
        let spec = AgentSpec::parse(self.capability.as_bytes(), &BuiltInToolNames).unwrap();
        let (store, order, host) = self.prepare(spec.about.name.clone());
        let env = SessionEnvironment {
            allowance: self.allowance,
            ..SessionEnvironment::new(Arc::new(store), &mut self.journal)
        };
        let session = AgentSession::prepare(&host, &spec, &order, env).await.unwrap();
        session.run_work().await
    }

    /// Verifies a text, which no model of the task has written.
    pub async fn verify(&mut self, text: &str) -> Result<TaskResult, SessionError> {
        let (store, order, host) = self.prepare(Capability::new("verify").unwrap());
        let env = SessionEnvironment {
            allowance: self.allowance,
            ..SessionEnvironment::new(Arc::new(store), &mut self.journal)
        };
        host.verify_text(&order, text.to_owned(), env).await
    }

    /// Writes the scripts, and returns the store, the order and the host of the task.
    fn prepare(&self, capability: Capability) -> (Store, Order, AgentHost) {
        let is_turn = |reply: &&Value| reply.get("calls").is_some() || reply.get("text").is_some();
        let turn = |reply: &Value| {
            Some(reply).filter(is_turn).cloned().unwrap_or_else(|| json!({ "answer": reply }))
        };
        let turns: Vec<Value> = self.replies.iter().map(turn).collect();
        let script = self.folder.path().join("model.yaml");
        let rules = json!({"ability": self.ability, "rules": [{ "turns": turns }]});
        std::fs::write(&script, rules.to_string()).unwrap();

        let mut store = Store::default();
        for (id, result) in &self.inputs {
            store.results.insert(TaskId::new(*id).unwrap(), result.clone());
        }
        let set = store.add_documents(&self.documents);
        let run = RunId::new("r").unwrap();
        let work = Work::Task { task: TaskId::new("t").unwrap(), attempt: 1 };
        let input = |(id, _): &(&str, TaskResult)| InputResult {
            task: TaskId::new(*id).unwrap(),
            objective: format!("do {id}"),
            capability: Capability::new("research").unwrap(),
            worker: WorkerId::new("w").unwrap(),
            summary: String::new(),
            at_sequence: 1,
        };
        let mut models = BTreeMap::new();
        if let Some(claims) = &self.verifier {
            let path = self.folder.path().join("verifier.yaml");
            let script = match self.verifier_error {
                Some(error) => json!({"ability": "small", "rules": [{"reply": {"error": error}}]}),
                None => verifier_script(claims),
            };
            std::fs::write(&path, script.to_string()).unwrap();
            models.insert(Capability::new("verifier").unwrap(), format!("script:{}", path.display()));
        }
        if let Some(model) = &self.embeddings {
            models.insert(Capability::new("embeddings").unwrap(), model.clone());
        }
        let order = Order {
            models,
            is_final: self.is_final,
            verification: self.policy,
            mission: self.mission.into(),
            inputs: self.inputs.iter().map(input).collect(),
            documents: Some(set).filter(|_| !self.documents.is_empty()),
            own_model: Some(format!("script:{}", script.display())),
            ..Order::new(run.clone(), run.lane(1), work, self.objective, capability)
        };
        let factory = ModelFactory { record_file: Some(self.cassette()), ..ModelFactory::default() };
        let host =
            AgentHost::new(HostSettings { factory, cache: self.cache.clone(), ..HostSettings::default() })
                .unwrap();
        (store, order, host)
    }
}
