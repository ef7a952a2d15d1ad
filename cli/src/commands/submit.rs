//! `millrace submit`: hand a run in to a cluster that runs, and leave.

use clap::Args;
use millrace_runtime::registry;

use crate::client::{Target, submit};
use crate::exit::{Exit, Stop};
use crate::intake::{Intake, IntakeArguments};
use crate::view::say;

/// The arguments of `millrace submit`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    intake: IntakeArguments,
    /// Language model that agents use, as provider:model, and after commas those that stand in for it; CAPABILITY= before
    /// it means that capability alone. May be given several times [default: what each worker is set to]
    #[arg(long, value_name = "[CAPABILITY=]MODEL")]
    model: Vec<String>,
    #[command(flatten)]
    target: Target,
}

/// Hands a run in and prints its id.
pub async fn command(arguments: Arguments) -> Result<Exit, Stop> {
    let intake = Intake::read(&arguments.intake, &arguments.model)?;
    for skipped in &intake.skipped {
        say(&format!("millrace: passed over {}: {}", skipped.path, skipped.reason));
    }
    let bus = arguments.target.connect().await?;
    let known = registry::capability_names(&bus).await?;
    for capability in intake.capabilities().into_iter().filter(|capability| !known.contains(*capability)) {
        let known: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
        say(&format!(
            "millrace: warning: no worker offers {:?} yet; its tasks wait for one (there are: {})",
            capability.as_str(),
            known.join(", ")
        ));
    }
    let run = submit(&bus, &intake.into_submission(&bus).await?).await?;
    println!("{run}");
    Ok(Exit::Completed)
}
