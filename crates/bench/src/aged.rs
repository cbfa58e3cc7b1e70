//! The job: an aged pool, with the log of space maps and without.
//!
//! Problem.  On a pool that has been in use for long, the space that a txg frees lies in nearly all
//!           metaslabs, and each of their maps changes. A new pool does not show that, and use for
//!           months cannot be waited for.
//! Idea.     The pool is filled with records of 4 KiB; a share of them, drawn at random, is freed;
//!           then records are overwritten at random. So free space is in holes of one block or two,
//!           everywhere. The image is saved, and each arm of each round begins with a copy of it.
//! Order.    `arm` is a mount option. `records` fills, frees and overwrites. `image` makes the aged
//!           image, once for each kind of filesystem. `load` is the measurement of one arm.
//!           `flushes` reads counters of the daemon. `targets` judges.
//!
//! An arm is a mount option, or `default`. Each arm overwrites until the log was written twice
//! over (`--log-laps`): before that, the log takes all changes and no map is due. Then each arm is
//! measured without a limit (`free`) and with one (`limited`). `txg` is a fixed number of
//! overwrites and a sync, several times; `loop` is overwrites with 32 in flight, for some time, and
//! a sync.
//!
//! btrfs and ext4 are filled and aged by the same calls, have the arm `default` alone, and
//! overwrite half of their records before they are measured. A filesystem that has no space left
//! before it is aged is filled less; a note says so.

mod arm;
mod flushes;
mod image;
mod load;
mod records;
mod targets;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use copyhold_harness::Interrupt;
use rustix::process::geteuid;

use crate::error::BenchError;
use crate::job::{Job, on_fresh};
use crate::judgement::{Judgement, Medians};
use crate::sample::Sample;
use crate::target::{Kind, Site};
use arm::{Arm, in_turn};
use image::{Image, Recipe};
use load::Load;

/// Seed of the first arm; each round has another.
const SEED: u64 = 24_000;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Aged {
    #[command(flatten)]
    recipe: Recipe,
    /// Mount options that are compared, each by itself, and `default`
    #[arg(long, value_delimiter = ',', default_value = "default,spacelog=off,flush=threshold")]
    arms: Vec<Arm>,
    #[command(flatten)]
    load: Load,
    /// The images that this run has aged.
    #[arg(skip)]
    images: RefCell<BTreeMap<Kind, Rc<Image>>>,
}

impl Job for Aged {
    fn name(&self) -> &'static str {
        "aged"
    }

    fn data_bytes(&self) -> u64 {
        self.recipe.size
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Null | Kind::Plain => Some("it has no image that can be aged"),
            _ if !geteuid().is_root() => Some("it needs loop devices, and those need root"),
            _ => None,
        }
    }

    fn is_drawn(&self, metric: &str) -> bool {
        targets::is_drawn(metric)
    }

    fn judgements(&self, medians: Medians<'_>) -> Vec<Judgement> {
        targets::judgements(medians)
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let image = self.image(site, kind, interrupt)?;
        let copies = site.on_copies_of(&image.path());
        let mut samples = image.samples();
        for arm in in_turn(&self.arms, round) {
            let copy = match (arm.option(), kind) {
                (None, _) => copies.with_options([]),
                (Some(option), Kind::Copyhold) => copies.with_options([option.to_owned()]),
                _ => continue,
            };
            eprintln!("aged: {}: {arm}", kind.name());
            let measured = on_fresh(&copy, kind, |target| {
                let records = image.records(target, SEED + u64::from(round), interrupt);
                self.load.run(site, target, &records, interrupt)
            })?;
            let name = arm.to_string();
            samples.extend(measured.into_iter().map(|sample| sample.of(&name)));
        }
        Ok(samples)
    }
}

impl Aged {
    /// The aged image of this kind, made at its first use.
    fn image(
        &self,
        site: &Site,
        kind: Kind,
        interrupt: &Interrupt,
    ) -> Result<Rc<Image>, BenchError> {
        if let Some(image) = self.images.borrow().get(&kind) {
            return Ok(image.clone());
        }
        eprintln!("aged: {}: a filesystem ages", kind.name());
        let mut recipe = self.recipe.clone();
        let image = loop {
            match Image::age(&recipe, site, kind, interrupt) {
                Err(error) if error.is_no_space() && recipe.fills_less() => {}
                made => break Rc::new(made?),
            }
        };
        if recipe.fill < self.recipe.fill {
            let less = format!("filled to {} % only: it had no space for more", recipe.fill);
            site.note(self.name(), kind, &less);
        }
        self.images.borrow_mut().insert(kind, image.clone());
        Ok(image)
    }
}
