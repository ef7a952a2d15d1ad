//! A real small model as planner, with the licences in `examples/licences`. `MILLRACE_TEST_LLM` is its address, such as
//! `http://127.0.0.1:8095/v1`; without it the test is skipped.

use std::path::Path;
use std::sync::Arc;

use millrace_agent::corpus::list_folder_files;
use millrace_agent::session::{AgentHost, AgentSession, HostSettings, ModelPreferences, SessionEnvironment};
use millrace_agent::sources::CapabilityOffer;
use millrace_agent::spec::AgentSpec;
use millrace_agent::turn::MemoryHost;
use millrace_protocol::plan::{Document, DocumentSet, Plan, PlannerTrigger, PlanningMode};
use millrace_protocol::wire;
use sha2::{Digest, Sha256};

use super::support::{Log, PlanBuilder, id, order};
use super::turns::planner;

const OBJECTIVES: [&str; 3] = [
    "How do these licences treat patents, and when does a patent grant end?",
    "Compare the obligations of distributors under the MIT, BSD and Apache licences.",
    "Which of these licences mention trademarks, and what do they say?",
];

/// A log with the documents of the example and the built-in agents.
fn log(plan: Plan) -> (Log, DocumentSet) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/licences");
    let name =
        |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut log = Log::with_plan(plan);
    let mut documents = Vec::new();
    for file in list_folder_files(&folder).unwrap().0 {
        let bytes = std::fs::read(folder.join(&file.path)).unwrap();
        documents.push(Document { path: file.path, sha256: name(&bytes), size: 0 });
        log.blobs.insert(name(&bytes), bytes);
    }
    let manifest = wire::encode_body(&documents);
    let count = u32::try_from(documents.len()).unwrap();
    let set = DocumentSet { manifest: name(&manifest), count, bytes: 0 };
    log.blobs.insert(set.manifest.clone(), manifest);
    log.offers = ["producer", "research", "worker"]
        .map(|name| {
            let path =
                Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../worker/capabilities/{name}.yaml"));
            let spec = AgentSpec::load(&path, &millrace_agent::session::tools::BuiltInToolNames).unwrap();
            CapabilityOffer { about: spec.describe(), slots: Some(4) }
        })
        .to_vec();
    (log, set)
}

#[tokio::test]
async fn small_model_ends_each_turn_with_a_proposal() {
    let Ok(address) = std::env::var("MILLRACE_TEST_LLM") else {
        println!("skipped: set MILLRACE_TEST_LLM to a server (such as http://127.0.0.1:8095/v1)");
        return;
    };
    let models = ModelPreferences::parse([format!("openai-compatible:local@{address}").as_str()]).unwrap();
    let host = AgentHost::new(HostSettings { models, ..HostSettings::default() }).unwrap();
    let new = |objective: &&str| {
        PlanBuilder::with(PlanningMode::Llm, objective, Default::default())
            .with_turn(vec![PlannerTrigger::NoPlan])
    };
    let mut plans: Vec<Plan> = OBJECTIVES.iter().map(new).collect();
    let mut lost = PlanBuilder::with(PlanningMode::Llm, OBJECTIVES[0], Default::default());
    lost.add("law", "research", &[]).add("facts", "research", &[]);
    lost.add("report", "producer", &["law", "facts"]).last("report");
    lost.completed("law").rejected("facts").failed("facts");
    plans.push(lost.with_turn(vec![PlannerTrigger::TaskLost { task: id("facts") }]));
    let (mut changed, turns) = (0, plans.len());
    for plan in plans {
        let began = std::time::Instant::now();
        let (log, documents) = log(plan);
        let order = millrace_protocol::work::Order { documents: Some(documents), ..order() };
        let mut journal = MemoryHost::default();
        let (env, planner) = (SessionEnvironment::new(Arc::new(log), &mut journal), planner());
        let session = AgentSession::prepare(&host, &planner, &order, env).await.unwrap();
        let planned = session.run_planning().await;
        for step in journal.steps().iter().skip(1) {
            println!("{}: {}", step.name, step.value);
        }
        println!("{:.1?}: {planned:?}\n", began.elapsed());
        let (proposal, _) = planned.unwrap_or_else(|error| panic!("{error}"));
        changed += usize::from(proposal.all_edits().next().is_some());
    }
    println!("{changed} of {turns} turns changed the plan");
}
