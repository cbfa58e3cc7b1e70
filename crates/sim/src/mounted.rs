//! Makes and mounts a filesystem on a machine's disk, for tests of one case each.

use std::sync::Arc;

use copyhold_fs::{Caller, Filesystem, FsError, Options};
use copyhold_pool::{CreateOptions, OpenOptions, Pool};

use crate::Machine;

const LOG_BYTES: u64 = 1 << 20;

impl Machine {
    /// Makes a pool with an empty filesystem and a log of 1 MiB, and mounts that.
    pub async fn mount_new(&self, options: Options) -> Result<Arc<Filesystem>, FsError> {
        let create = CreateOptions { log_bytes: Some(LOG_BYTES), ..CreateOptions::default() };
        Pool::create(&self.rt(), &self.device(), &create).await?;
        let pool = self.open_pool().await?;
        Filesystem::format(&pool, &Caller::ROOT, 0o755).await?;
        pool.close().await?;
        self.mount(options).await
    }

    /// Mounts the filesystem on the disk.
    pub async fn mount(&self, options: Options) -> Result<Arc<Filesystem>, FsError> {
        Filesystem::open(self.open_pool().await?, options).await
    }

    async fn open_pool(&self) -> Result<Arc<Pool>, FsError> {
        let options = OpenOptions { tenants: true, ..OpenOptions::default() };
        Ok(Pool::open(self.rt(), self.device(), options).await?)
    }
}
