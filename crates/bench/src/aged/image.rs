//! An aged filesystem as an image that is saved, and copied for each measurement.

use std::path::PathBuf;
use std::process::Command;

use copyhold_harness::{Interrupt, Place};
use serde_json::Value;

use crate::aged::records::{Records, Shape};
use crate::error::BenchError;
use crate::meter::Bounds;
use crate::sample::Sample;
use crate::size;
use crate::target::{Kind, Site, Target, run};

/// The shape and the age of the filesystem.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Recipe {
    /// Size of the device: a number with K, M or G
    #[arg(long, default_value = "4G", value_parser = size::parse)]
    pub(super) size: u64,
    /// Size of Copyhold's metaslabs
    #[arg(long, default_value = "4M")]
    metaslab: String,
    /// Size of Copyhold's log [default: as `copyhold create` chooses it]
    #[arg(long)]
    log_size: Option<String>,
    /// The share of the space that records fill, in percent
    #[arg(long, default_value_t = 95, value_parser = clap::value_parser!(u32).range(1..=97))]
    pub(super) fill: u32,
    /// The share of records that are freed, in percent
    #[arg(long, default_value_t = 22, value_parser = clap::value_parser!(u32).range(0..=90))]
    freed: u32,
    /// Overwrites that age the filesystem, in percent of its records
    #[arg(long, default_value_t = 100)]
    overwrites: u32,
    /// Files that have the records; each has a writer
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    files: u32,
}

/// A filesystem that has no space to be aged is filled so many percent less, down to a bound.
const LESS: u32 = 5;
const FILL_MIN: u32 = 60;

impl Recipe {
    /// Whether there is a recipe that fills less; this is that one now.
    pub(super) fn fills_less(&mut self) -> bool {
        let is_enough = self.fill >= FILL_MIN + LESS;
        self.fill -= if is_enough { LESS } else { 0 };
        is_enough
    }
}

/// Dropping it removes the image.
#[derive(Debug)]
pub(super) struct Image {
    place: Place,
    shape: Shape,
    /// In percent, where the filesystem reports it.
    fragmentation: Option<f64>,
}

impl Image {
    /// Makes a filesystem of this kind, ages it and saves its image.
    pub(super) fn age(
        recipe: &Recipe,
        site: &Site,
        kind: Kind,
        interrupt: &Interrupt,
    ) -> Result<Image, BenchError> {
        let mut create = vec!["--metaslab".to_owned(), recipe.metaslab.clone()];
        let log = recipe.log_size.iter();
        create.extend(log.flat_map(|size| ["--log-size".to_owned(), size.clone()]));
        let site = site.on_devices(recipe.size).created_with(create);
        let place = site.new_place()?;
        let target = site.set_up(kind)?;
        let shape = Shape { files: recipe.files, per_file: 0, freed_percent: recipe.freed };
        let records = Records::fill(&target, shape, recipe.fill, interrupt)?;
        records.free()?;
        target.sync()?;
        let shape = records.shape();
        let overwrites = shape.records() * u64::from(recipe.overwrites) / 100;
        records.overwrite(Bounds::ops(overwrites))?;
        target.sync()?;
        let mut debug = target.copyhold();
        target.save(&place.image())?;
        let fragmentation = match kind {
            Kind::Copyhold => {
                Some(fragmentation_of(debug.args(["--json", "debug", "space"]), &place)?)
            }
            _ => None,
        };
        Ok(Image { place, shape, fragmentation })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.place.image()
    }

    /// The records of a copy of this image. `seed`: of the overwrites.
    pub(super) fn records<'a>(
        &self,
        target: &Target<'_>,
        seed: u64,
        interrupt: &'a Interrupt,
    ) -> Records<'a> {
        Records::of(target, self.shape, seed, interrupt)
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        let records = self.shape.records() as f64;
        let mut samples = vec![Sample::new("image", "records", "records", records)];
        let figure = |percent| Sample::new("image", "fragmentation", "percent", percent);
        samples.extend(self.fragmentation.map(figure));
        samples
    }
}

/// The fragmentation of an unmounted pool, in percent.
fn fragmentation_of(debug: &mut Command, place: &Place) -> Result<f64, BenchError> {
    let space = run(debug.arg(place.image()))?;
    let space: Option<Value> = serde_json::from_str(&space).ok();
    let figure = space.and_then(|space| space.get("fragmentation")?.as_f64());
    figure.ok_or(BenchError::NoCounters("copyhold debug space".to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        recipe: Recipe,
    }

    #[test]
    fn a_recipe_fills_less_down_to_a_bound() {
        let mut recipe = Line::parse_from(["x", "--fill", "72"]).recipe;
        assert_eq!([(); 3].map(|()| recipe.fills_less()), [true, true, false]);
        assert_eq!(recipe.fill, 62);
    }
}
