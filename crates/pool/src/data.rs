//! Blocks of file data: attached ones from memory, clean ones too if the reader wants that,
//! the others from the devices, verified.

use std::sync::Arc;

use copyhold_memory::MemoryOwner;
use copyhold_types::{Buf, Purpose, Run};

use crate::attached::{self, Attached, Found};
use crate::balance::Balance;
use crate::births::Births;
use crate::copies::Copied;
use crate::guards::ChangedMemory;
use crate::verified::{Condition, Problem, Reader};

/// A reader waits for so many fetches of others (CLEAN-D4).
const WAITS: usize = 4;

pub(crate) struct DataStore {
    pub(crate) attached: Attached,
    pub(crate) births: Births,
    pub(crate) changed_memory: ChangedMemory,
    reader: Arc<Reader>,
    balance: Arc<Balance>,
}

impl DataStore {
    pub(crate) fn new(reader: Arc<Reader>, balance: Arc<Balance>) -> DataStore {
        DataStore {
            attached: Attached::default(),
            births: Births::default(),
            changed_memory: ChangedMemory::default(),
            reader,
            balance,
        }
    }

    /// The content of a run. `keep`: blocks with checksums are kept in memory for this owner, and
    /// found there. `from_device`: also blocks that are attached, be they there or not.
    pub(crate) async fn read(
        &self,
        run: Run,
        condition: Condition<'_>,
        why: Purpose,
        keep: Option<&MemoryOwner>,
        from_device: bool,
    ) -> Result<Buf, Problem> {
        let attached = if from_device { Found::new() } else { self.attached.find(run) };
        let copy = Copied::Whole(run);
        if !attached.is_empty() && attached::is_all(&attached, run.blocks) {
            let content = attached::join(attached, run.blocks);
            return condition.judge(&content, &copy).map(|()| content);
        }
        let clean = self.reader.devices().clean();
        if let (Some(owner), Condition::Sums(sums)) = (keep, condition)
            && attached.is_empty()
            && clean.is_on()
        {
            return match clean.find(run, sums) {
                Some(content) => Ok(content),
                None => Box::pin(self.fetch(run, sums, why, owner)).await,
            };
        }
        self.reader.read_beside(&[copy], &attached, condition, why).await
    }

    /// Reads a run from its device, or waits for another reader of it; and keeps it.
    async fn fetch(
        &self,
        run: Run,
        sums: &[u32],
        why: Purpose,
        owner: &MemoryOwner,
    ) -> Result<Buf, Problem> {
        let clean = self.reader.devices().clean();
        let mut fetch = clean.begin(run, true);
        for waited in 1..=WAITS {
            let Err(other) = fetch else { break };
            other.await;
            if let Some(content) = clean.find(run, sums) {
                return Ok(content);
            }
            fetch = clean.begin(run, waited < WAITS);
        }
        let copies = [Copied::Whole(run)];
        let content = self.reader.read(&copies, Condition::Sums(sums), why).await?;
        if let Ok(fetch) = fetch {
            self.balance.data_evicted(fetch.keep(&content, owner));
        }
        Ok(content)
    }
}
