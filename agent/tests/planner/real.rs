//! A real small model as planner. `MILLRACE_TEST_LLM` names its address, such as `http://127.0.0.1:8095/v1`; without it the
//! test says so and does nothing.

use std::sync::Arc;

use millrace_agent::corpus::walk;
use millrace_agent::desk::{Desk, Preferences, Seat, Settings};
use millrace_agent::planner::Turn;
use millrace_agent::turn::MemoryJournal;
use millrace_protocol::plan::{Mode, Occasion};

use crate::support::{Log, Made, board, id, order, seen};
use crate::turns::planner;

const OBJECTIVES: [&str; 3] = [
    "How do these licences treat patents, and when does a patent grant end?",
    "Compare what the MIT, BSD and Apache licences ask of whoever distributes the software.",
    "Which of these licences mention trademarks, and what do they say?",
];

#[tokio::test]
async fn a_small_model_makes_a_plan_and_mends_one() {
    let Ok(address) = std::env::var("MILLRACE_TEST_LLM") else {
        println!("skipped: MILLRACE_TEST_LLM names no server (such as http://127.0.0.1:8095/v1)");
        return;
    };
    let models = Preferences::parse([format!("openai-compatible:local@{address}").as_str()]).unwrap();
    let desk = Desk::new(Settings { models, ..Settings::default() }).unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/licences");
    assert!(!walk(&folder).unwrap().0.is_empty());
    let mut plans: Vec<_> = OBJECTIVES
        .iter()
        .map(|objective| Made::with(Mode::Llm, objective, Default::default()).asked(vec![Occasion::NoPlan]))
        .collect();
    let mut lost = Made::with(Mode::Llm, OBJECTIVES[0], Default::default());
    lost.add("law", "research", &[]).add("facts", "research", &[]);
    lost.add("report", "producer", &["law", "facts"])
        .last("report")
        .completed("law")
        .rejected("facts")
        .failed("facts");
    plans.push(lost.asked(vec![Occasion::TaskLost { task: id("facts") }]));
    for plan in plans {
        println!("==== {}", board(plan.clone()));
        let began = std::time::Instant::now();
        let log = Arc::new(Log { plan: plan.clone() });
        let mut journal = MemoryJournal::default();
        let planned = desk.plan(&planner(), &order(), Seat::new(log, &mut journal)).await;
        for step in journal.steps() {
            println!("{}: {}", step.name, step.value);
        }
        println!("{:.1?}: {planned:#?}", began.elapsed());
        let (proposal, _) = planned.unwrap();
        let turn = Turn::new(plan, seen());
        drop(turn);
        assert!(proposal.all().next().is_some());
    }
}
