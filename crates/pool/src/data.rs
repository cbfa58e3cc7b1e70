//! Blocks of file data: attached ones from memory, the others from the devices, verified.

use std::sync::Arc;

use copyhold_types::{Buf, Purpose, Run};

use crate::attached::{self, Attached, Found};
use crate::copies::Copied;
use crate::verified::{Expect, Problem, Reader};

pub(crate) struct DataStore {
    pub(crate) attached: Attached,
    reader: Arc<Reader>,
}

impl DataStore {
    pub(crate) fn new(reader: Arc<Reader>) -> DataStore {
        DataStore { attached: Attached::default(), reader }
    }

    /// The content of a run. `from_device`: also of blocks that are attached, be they there or not.
    pub(crate) async fn read(
        &self,
        run: Run,
        expect: Expect<'_>,
        why: Purpose,
        from_device: bool,
    ) -> Result<Buf, Problem> {
        let attached = if from_device { Found::new() } else { self.attached.find(run) };
        let copy = Copied::Whole(run);
        if !attached.is_empty() && attached::is_all(&attached, run.blocks) {
            let content = attached::join(attached, run.blocks);
            return expect.judge(&content, &copy).map(|()| content);
        }
        self.reader.read_beside(&[copy], &attached, expect, why).await
    }
}
