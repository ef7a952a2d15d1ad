//! `millrace submit`: hand a run in to a cluster that runs, and leave.

use std::collections::BTreeSet;

use clap::Args;
use millrace_protocol::ids::Capability;
use millrace_runtime::{Bus, registry};

use crate::client::{Target, submit};
use crate::exit::{Exit, Stop};
use crate::intake::{Intake, IntakeArguments, warn_of_unused};
use crate::view::{print_line, say};

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
    intake.warning().iter().for_each(|warning| say(warning));
    let bus = arguments.target.connect().await?;
    warn_of_names(&bus, &intake).await?;
    let run = submit(&bus, &intake.into_submission(&bus).await?).await?;
    print_line(run.as_str());
    Ok(Exit::Completed)
}

/// Says which of the capabilities that a run names nobody offers yet.
pub async fn warn_of_names(bus: &Bus, intake: &Intake) -> Result<(), Stop> {
    warn_of_unknown(bus, intake.capabilities().into_iter()).await?;
    let known = registry::capability_names(bus).await?;
    warn_of_unused(intake.modelled().chain(intake.budgeted()), known.iter().map(Capability::as_str));
    Ok(())
}

/// Says which of these capabilities nobody offers yet.
pub async fn warn_of_unknown<'a>(
    bus: &Bus,
    capabilities: impl Iterator<Item = &'a Capability>,
) -> Result<(), Stop> {
    let known = registry::capability_names(bus).await?;
    let unknown: BTreeSet<&Capability> =
        capabilities.filter(|capability| !known.contains(*capability)).collect();
    for capability in unknown {
        let known: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
        say(&format!(
            "millrace: warning: no worker offers {:?} yet; its tasks wait for one (there are: {})",
            capability.as_str(),
            known.join(", ")
        ));
    }
    Ok(())
}
