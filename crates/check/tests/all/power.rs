//! A simulated machine with a pool, for histories that are checked.

use std::sync::Arc;

use copyhold_check::{Options, Report, check_device};
use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_fs::{Caller, Filesystem};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::DeviceId;

/// A device that is switched on.
pub(crate) struct Power {
    pub(crate) rt: Arc<SeededRuntime>,
    pub(crate) device: Arc<SimDevice>,
}

impl Power {
    pub(crate) fn on(seed: u64, image: SimImage) -> Power {
        let rt = SeededRuntime::new(seed);
        let config = SimConfig::new(seed);
        let device = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        Power { rt, device }
    }

    fn device(&self) -> DynDevice {
        self.device.clone()
    }

    /// Makes a pool whose partitions have so many leaves at most, with an empty filesystem.
    pub(crate) fn format(&self, partition_leaves: u32) {
        let rt: Rt = self.rt.clone();
        let options = CreateOptions {
            log_bytes: Some(1 << 20),
            metaslab_blocks: Some(1024),
            node_bytes: Some(4096),
            partition_leaves: Some(partition_leaves),
            ..CreateOptions::default()
        };
        self.rt.block_on(async {
            Pool::create(&rt, &self.device(), &options).await.unwrap();
            let pool = self.pool(Limits::default()).await;
            Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
            pool.close().await.unwrap();
        });
        self.rt.drop_tasks();
    }

    pub(crate) async fn pool(&self, limits: Limits) -> Arc<Pool> {
        let options = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
        Pool::open(self.rt.clone() as Rt, self.device(), options).await.unwrap()
    }

    pub(crate) fn check(&self) -> Report {
        let rt = self.rt.clone() as Rt;
        self.rt.block_on(check_device(rt, self.device(), Options::default())).unwrap()
    }
}
