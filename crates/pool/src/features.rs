//! Features that a pool begins to use, in its labels.
//!
//! A program that does not know a feature must notice it before it meets a record that needs it.
//!
//! FEATURE-F1  A feature is in both labels, durably, before anything that needs it is logged. The
//!             labels are written one after the other, so one of the two is whole whenever the
//!             power fails; the one with the higher generation counts.

use copyhold_format::label::{Features, Label};

use crate::labels::{places, write_label};
use crate::{Pool, PoolError};

/// Names these features, which the pool uses from now on (FEATURE-F1).
pub async fn use_features(pool: &Pool, features: Features) -> Result<(), PoolError> {
    pool.check_writable()?;
    if pool.label.with(features).is_none() {
        return Ok(());
    }
    let _changing = pool.label.changing.lock().await;
    if let Some(label) = pool.label.with(features) {
        write_labels(pool, &label).await?;
        pool.label.written(&label);
    }
    Ok(())
}

/// The features that the pool uses now.
pub fn features_of(pool: &Pool) -> Features {
    pool.label.features()
}

pub(crate) async fn write_labels(pool: &Pool, label: &Label) -> Result<(), PoolError> {
    for at in places(pool.devices.home(), label) {
        write_label(pool.devices.home(), label, at).await?;
        pool.flush_device().await?;
    }
    Ok(())
}
