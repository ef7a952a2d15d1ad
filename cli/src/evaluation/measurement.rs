//! Measures the samples of a configuration that its results lack, several at a time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use millrace_agent::corpus::{Corpus, ListedFile};
use millrace_agent::model::Model;
use millrace_agent::verification::Verifier;
use millrace_local_cluster::users::ClusterUse;
use millrace_local_cluster::{LocalOptions, WebOffer};
use millrace_protocol::safe_text::single_line;
use millrace_runtime::Bus;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::ceiling::{measure_ceiling, open_ceiling_model};
use super::cluster::{ClusterSampler, SampleEnd};
use super::environment::EvaluationEnvironment;
use super::input::claims::Claim;
use super::input::file::{Configuration, Objective};
use super::item::EvaluationItem;
use super::score::answers::AnswerSums;
use super::score::claims::ClaimSums;
use super::score::{ConfigurationScores, MethodScore};
use super::selection::{SampleJob, list_samples};
use super::setup::{ConfigurationSetup, SampleConditions};
use super::store::{ResultsFolder, SampleKey, SampleMethod, SampleRecord};
use super::verification::{ask_about_claim, describe_calibration, probe_verifier, verify_claim};
use crate::documents::upload_files;
use crate::exit::{CommandError, CommandExit};
use crate::session::{ClusterStart, run_with_local_cluster};
use crate::submission::open_models_to_check;
use crate::target::ClusterTarget;
use crate::verifier::open_verifier;

/// An evaluation with everything that its measurement needs.
pub struct Evaluation<'a, T> {
    pub items: Vec<&'a T>,
    pub conditions: SampleConditions,
    pub files: Vec<ListedFile>,
    pub corpus: Corpus,
    pub environment: EvaluationEnvironment,
    /// The cluster to measure on, or the data folder in which each configuration gets its own.
    pub target: ClusterTarget,
    /// The number of samples that are measured at the same time.
    pub parallel: u16,
    pub call_timeout: Option<Duration>,
    pub progress: SampleProgress,
    pub interrupt: CancellationToken,
}

/// Prints samples as they end.
#[derive(Debug, Clone, Copy)]
pub struct SampleProgress {
    pub is_json: bool,
}

/// The samples of one configuration, measured in one way, by whether they have ended.
struct PendingSamples<'a, T: EvaluationItem> {
    configuration: &'a Configuration,
    jobs: Vec<SampleJob<'a, T>>,
    score: MethodScore<T::Sums>,
}

impl<'a> Evaluation<'a, Objective> {
    /// Measures what is missing of a configuration and returns its scores.
    pub async fn measure_configuration(
        &self,
        configuration: &'a Configuration,
        with_ceiling: bool,
        results: &Mutex<ResultsFolder>,
    ) -> Result<ConfigurationScores<AnswerSums>, CommandError> {
        let mut runs = self.find_pending(configuration, SampleMethod::Run, results).await?;
        if !runs.jobs.is_empty() {
            self.measure_runs(&mut runs, results).await?;
        }
        let mut methods = vec![(SampleMethod::Run, runs.score)];
        if with_ceiling && !self.interrupt.is_cancelled() {
            let ceiling = self.measure_ceilings(configuration, results).await?;
            methods.extend(ceiling.map(|score| (SampleMethod::Ceiling, score)));
        }
        Ok(ConfigurationScores { name: configuration.name.to_string(), methods })
    }

    /// Measures samples as runs, on a cluster of the configuration's own or on the one that the user names.
    async fn measure_runs(
        &self,
        pending: &mut PendingSamples<'_, Objective>,
        results: &Mutex<ResultsFolder>,
    ) -> Result<(), CommandError> {
        if self.target.nats.is_some() {
            let (bus, cluster_use): (Bus, Option<ClusterUse>) = self.target.use_cluster().await?;
            let outcome = self.measure_on_cluster(&bus, pending, results).await;
            drop(cluster_use);
            return outcome;
        }
        let options = self.local_options(pending.configuration, results.lock().await.path());
        open_models_to_check(&options)?;
        let web = if options.web { WebOffer::AsConfigured } else { WebOffer::Never };
        let start = ClusterStart { options: &options, web };
        let work = run_with_local_cluster(start, &self.interrupt, async |bus, _| {
            self.measure_on_cluster(bus, pending, results).await?;
            Ok(CommandExit::Completed)
        });
        Box::pin(work).await.map(drop)
    }

    fn local_options(&self, configuration: &Configuration, results: &Path) -> LocalOptions {
        let parallel = u32::from(self.parallel);
        LocalOptions {
            workers: 2,
            // A run has tasks in parallel, and a planner.
            slots: parallel.max(4),
            critics: 1,
            capability: configuration.capabilities.clone(),
            web: configuration.web,
            model: configuration.models.clone(),
            call_timeout: self.call_timeout,
            ..LocalOptions::for_one_command(&results.join("clusters").join(configuration.name.as_str()), true)
        }
    }

    async fn measure_on_cluster(
        &self,
        bus: &Bus,
        pending: &mut PendingSamples<'_, Objective>,
        results: &Mutex<ResultsFolder>,
    ) -> Result<(), CommandError> {
        let documents = upload_files(bus, self.files.clone()).await?;
        let sampler = ClusterSampler {
            bus,
            configuration: pending.configuration,
            documents,
            corpus: &self.corpus,
            conditions: &self.conditions,
            interrupt: &self.interrupt,
        };
        self.measure_in_parallel(pending, results, async |job| sampler.measure(job, results).await).await
    }

    /// Measures the model alone. Returns `None` if the configuration has no language model.
    async fn measure_ceilings(
        &self,
        configuration: &'a Configuration,
        results: &Mutex<ResultsFolder>,
    ) -> Result<Option<MethodScore<AnswerSums>>, CommandError> {
        let Some(model) = open_ceiling_model(configuration, self.call_timeout)? else {
            note!("{} has no language model; its ceiling is not measured", configuration.name);
            return Ok(None);
        };
        let model: Arc<dyn Model> = model;
        let mut pending = self.find_pending(configuration, SampleMethod::Ceiling, results).await?;
        let timeout = self.conditions.timeout;
        let measure = async |job: &SampleJob<'_, Objective>| {
            let end = measure_ceiling(model.as_ref(), job.item, &self.corpus, timeout);
            Ok(self.until_interrupt(end).await)
        };
        self.measure_in_parallel(&mut pending, results, measure).await?;
        Ok(Some(pending.score))
    }
}

impl<'a> Evaluation<'a, Claim> {
    /// Measures what is missing of a configuration and returns its scores.
    pub async fn measure_configuration(
        &self,
        configuration: &'a Configuration,
        is_direct: bool,
        results: &Mutex<ResultsFolder>,
    ) -> Result<ConfigurationScores<ClaimSums>, CommandError> {
        let verifier = open_verifier(&configuration.models, self.call_timeout)?;
        let timeout = self.conditions.timeout;
        let mut verified = self.find_pending(configuration, SampleMethod::Verification, results).await?;
        if let Some(verifier) = verifier.as_ref().filter(|_| !verified.jobs.is_empty()) {
            tokio::select! {
                probed = probe_verifier(verifier) => probed?,
                () = self.interrupt.cancelled() => {}
            }
        }
        let verify = async |job: &SampleJob<'_, Claim>| {
            let end = verify_claim(job.item, verifier.as_ref(), timeout);
            Ok(self.until_interrupt(end).await)
        };
        self.measure_in_parallel(&mut verified, results, verify).await?;
        let calibration = verifier.as_ref().and_then(Verifier::remembered_calibration);
        verified.score.sums.probe = calibration.as_ref().map(describe_calibration);
        let mut methods = vec![(SampleMethod::Verification, verified.score)];
        if is_direct && !self.interrupt.is_cancelled() {
            match &verifier {
                Some(verifier) => {
                    let mut asked = self.find_pending(configuration, SampleMethod::Direct, results).await?;
                    let ask = async |job: &SampleJob<'_, Claim>| {
                        let end = ask_about_claim(job.item, verifier.model(), timeout);
                        Ok(self.until_interrupt(end).await)
                    };
                    self.measure_in_parallel(&mut asked, results, ask).await?;
                    methods.push((SampleMethod::Direct, asked.score));
                }
                None => note!("{} has no verifier; the direct requests are left out", configuration.name),
            }
        }
        Ok(ConfigurationScores { name: configuration.name.to_string(), methods })
    }
}

impl<'a, T: EvaluationItem> Evaluation<'a, T> {
    async fn until_interrupt(&self, measuring: impl Future<Output = SampleEnd>) -> SampleEnd {
        tokio::select! {
            end = measuring => end,
            () = self.interrupt.cancelled() => SampleEnd::Interrupted,
        }
    }

    /// Returns the samples that have not been measured, and the score of the others.
    async fn find_pending(
        &self,
        configuration: &'a Configuration,
        method: SampleMethod,
        results: &Mutex<ResultsFolder>,
    ) -> Result<PendingSamples<'a, T>, CommandError> {
        let setup = ConfigurationSetup::read(configuration, &self.environment).await?;
        let all = list_samples(configuration, &setup, &self.items, method, &self.conditions, &self.corpus);
        let mut pending = PendingSamples { configuration, jobs: Vec::new(), score: MethodScore::default() };
        pending.score.selected = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let results = results.lock().await;
        for job in all {
            match results.find_record(&job.key) {
                Some(record) => {
                    let sample = job.item.add_to(&mut pending.score, record);
                    if self.progress.is_json {
                        self.progress.print_sample(job.item, &job.key, record, &sample);
                    }
                }
                None => pending.jobs.push(job),
            }
        }
        if pending.score.samples > 0 {
            note!(
                "{}: {} of {} samples ({}) are in the results already",
                configuration.name,
                pending.score.samples,
                pending.score.selected,
                method.name()
            );
        }
        Ok(pending)
    }

    /// Measures samples, several at a time, and records each as it ends.
    async fn measure_in_parallel(
        &self,
        pending: &mut PendingSamples<'_, T>,
        results: &Mutex<ResultsFolder>,
        measure: impl AsyncFn(&SampleJob<'_, T>) -> Result<SampleEnd, CommandError>,
    ) -> Result<(), CommandError> {
        let jobs = std::mem::take(&mut pending.jobs);
        let measure = &measure;
        let mut ends = futures::stream::iter(jobs)
            .map(|job| async move {
                let end = if self.interrupt.is_cancelled() {
                    Ok(SampleEnd::Interrupted)
                } else {
                    measure(&job).await
                };
                (job, end)
            })
            .buffer_unordered(usize::from(self.parallel));
        while let Some((job, end)) = ends.next().await {
            match end? {
                SampleEnd::Finished(record) => {
                    let sample = job.item.add_to(&mut pending.score, &record);
                    self.progress.print_sample(job.item, &job.key, &record, &sample);
                    results.lock().await.record_end(&job.key, record)?;
                }
                SampleEnd::Unmeasured(reason) => {
                    note!("{}: not measured: {}", describe_sample(&job.key), single_line(&reason));
                }
                SampleEnd::Interrupted => {}
            }
        }
        Ok(())
    }
}

impl SampleProgress {
    fn print_sample<T: EvaluationItem>(
        self,
        item: &T,
        key: &SampleKey,
        record: &SampleRecord,
        sample: &T::Sample,
    ) {
        if self.is_json {
            return item.print_sample_json(key, record, sample);
        }
        let mut parts = T::describe(sample, record);
        parts.push(format!("{:.1} s", record.elapsed_ms as f64 / 1000.0));
        note!("{}: {}", describe_sample(key), parts.join(", "));
    }
}

fn describe_sample(key: &SampleKey) -> String {
    let SampleKey { configuration, objective, sample, method, .. } = key;
    let method = if method.is_main() { String::new() } else { format!(" ({})", method.name()) };
    format!("{configuration} {objective} {sample}{method}")
}
