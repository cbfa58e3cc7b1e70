//! A client's changes of checksum modes: of its files, and of its directories, which new files
//! inherit. The client chooses by dice of its own, so all else that it does stays what it was.

use copyhold_format::item::ChecksumMode;
use copyhold_fs::{Caller, checksum_mode_of, set_checksum_mode};

use super::{Client, Done};
use crate::dice::Dice;
use crate::fs_level::span::Span;
use crate::fs_level::tree::Kind;

/// How a client is about checksum modes.
pub(crate) struct ModeHabits {
    pub(crate) dice: Dice,
    /// It changes them.
    pub(crate) modes: bool,
}

impl Client {
    /// Every other time.
    pub(super) async fn change_checksum_modes(&mut self) -> Done {
        if !self.modes.modes || !self.modes.dice.one_in(2) {
            return Ok(());
        }
        std::mem::swap(&mut self.dice, &mut self.modes.dice);
        let done = self.change_mode_of_any().await;
        std::mem::swap(&mut self.dice, &mut self.modes.dice);
        done
    }

    async fn change_mode_of_any(&mut self) -> Done {
        let mut tree = self.tree();
        let Some((_, id)) = self.a_pliable_entry(&tree) else { return Ok(()) };
        let mode = self.dice.pick(&ChecksumMode::ALL);
        let object = tree.objects.get_mut(&id).expect("it has a name");
        let has_mode = matches!(object.kind, Kind::File | Kind::Dir | Kind::Subvol);
        if !has_mode || object.checksum_mode == mode {
            return Ok(());
        }
        object.checksum_mode = mode;
        object.ctime = Span::Now;
        let node = self.world().nodes[&id];
        self.begin("set checksum mode", tree, &[id]);
        let set = set_checksum_mode(&self.fs, &Caller::ROOT, node, mode).await;
        let set = self.given("set checksum mode", set)?.is_some();
        self.end(set);
        if set {
            let found = checksum_mode_of(&self.fs, node).await;
            let found = self.given("checksum mode", found)?;
            assert_eq!(found, Some(mode), "object {id}");
        }
        Ok(())
    }
}
