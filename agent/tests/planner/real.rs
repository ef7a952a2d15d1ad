//! A real small model as planner, over the licences in `examples/licences`. `MILLRACE_TEST_LLM` names its address, such as
//! `http://127.0.0.1:8095/v1`; without it the test says so and does nothing.

use std::path::Path;
use std::sync::Arc;

use millrace_agent::corpus::walk;
use millrace_agent::desk::{Desk, Preferences, Seat, Settings};
use millrace_agent::planner::Offer;
use millrace_agent::spec::Spec;
use millrace_agent::turn::MemoryJournal;
use millrace_protocol::plan::{Document, DocumentSet, Mode, Occasion, Plan};
use millrace_protocol::wire;
use sha2::{Digest, Sha256};

use crate::support::{Log, Made, id, order};
use crate::turns::planner;

const OBJECTIVES: [&str; 3] = [
    "How do these licences treat patents, and when does a patent grant end?",
    "Compare what the MIT, BSD and Apache licences ask of whoever distributes the software.",
    "Which of these licences mention trademarks, and what do they say?",
];

/// A log with the documents of the example and the agents that workers have built in.
fn log(plan: Plan) -> (Log, DocumentSet) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/licences");
    let name =
        |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut log = Log::of(plan);
    let mut documents = Vec::new();
    for file in walk(&folder).unwrap().0 {
        let bytes = std::fs::read(folder.join(&file.path)).unwrap();
        documents.push(Document { path: file.path, sha256: name(&bytes), size: 0 });
        log.blobs.insert(name(&bytes), bytes);
    }
    let manifest = wire::body(&documents);
    let count = u32::try_from(documents.len()).unwrap();
    let set = DocumentSet { manifest: name(&manifest), count, bytes: 0 };
    log.blobs.insert(set.manifest.clone(), manifest);
    log.offers = ["producer", "research", "worker"]
        .map(|name| {
            let path =
                Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../worker/capabilities/{name}.yaml"));
            let spec = Spec::load(&path, &millrace_agent::desk::shelf::Inner).unwrap();
            Offer { about: spec.describe(), slots: Some(4) }
        })
        .to_vec();
    (log, set)
}

#[tokio::test]
async fn a_small_model_ends_each_turn_with_a_proposal() {
    let Ok(address) = std::env::var("MILLRACE_TEST_LLM") else {
        println!("skipped: MILLRACE_TEST_LLM names no server (such as http://127.0.0.1:8095/v1)");
        return;
    };
    let models = Preferences::parse([format!("openai-compatible:local@{address}").as_str()]).unwrap();
    let desk = Desk::new(Settings { models, ..Settings::default() }).unwrap();
    let new =
        |objective: &&str| Made::with(Mode::Llm, objective, Default::default()).asked(vec![Occasion::NoPlan]);
    let mut plans: Vec<Plan> = OBJECTIVES.iter().map(new).collect();
    let mut lost = Made::with(Mode::Llm, OBJECTIVES[0], Default::default());
    lost.add("law", "research", &[]).add("facts", "research", &[]);
    lost.add("report", "producer", &["law", "facts"]).last("report");
    lost.completed("law").rejected("facts").failed("facts");
    plans.push(lost.asked(vec![Occasion::TaskLost { task: id("facts") }]));
    let (mut changed, turns) = (0, plans.len());
    for plan in plans {
        let began = std::time::Instant::now();
        let (log, documents) = log(plan);
        let order = millrace_protocol::work::Order { documents: Some(documents), ..order() };
        let mut journal = MemoryJournal::default();
        let planned = desk.plan(&planner(), &order, Seat::new(Arc::new(log), &mut journal)).await;
        for step in journal.steps().iter().skip(1) {
            println!("{}: {}", step.name, step.value);
        }
        println!("{:.1?}: {planned:?}\n", began.elapsed());
        let (proposal, _) = planned.unwrap_or_else(|error| panic!("{error}"));
        changed += usize::from(proposal.all().next().is_some());
    }
    println!("{changed} of {turns} turns changed the plan");
}
