//! A simulation that has never failed proves nothing: each rule is broken on purpose, and within a
//! bounded number of seeds the simulation must notice, while the same seeds pass unbroken.

use copyhold_fs::Sabotage as OfFiles;
use copyhold_pool::{FlushPolicy, Sabotage};
use copyhold_sim::{Level, Plan, Weather};
use copyhold_volume::Sabotage as OfTenants;

/// Seeds that a rule may take to be noticed; most take a few.
const SEEDS: u64 = 400;

#[track_caller]
fn is_noticed(rule: Sabotage, weather: impl Into<Option<Weather>>) {
    is_noticed_at(Level::Pool, rule, weather.into());
}

#[track_caller]
fn is_noticed_at(level: Level, rule: impl Into<copyhold_sim::Sabotage>, weather: Option<Weather>) {
    is_noticed_from(1, level, rule, weather);
}

/// As [`is_noticed_at`], from a later seed on: of a rule that few histories notice.
#[track_caller]
fn is_noticed_from(
    first: u64,
    level: Level,
    rule: impl Into<copyhold_sim::Sabotage>,
    weather: Option<Weather>,
) {
    // Changes of modes would only shift what a seed means.
    let plan = Plan { weather, modes: Some(false), ..Plan::new(level, first) };
    is_noticed_in(plan, rule.into());
}

/// As [`is_noticed_at`], in histories like this one, from its seed on.
#[track_caller]
fn is_noticed_in(plan: Plan, rule: copyhold_sim::Sabotage) {
    for seed in plan.seed..plan.seed + SEEDS {
        let sound = Plan { seed, ..plan };
        if let Err(failure) = sound.run() {
            panic!("{failure}");
        }
        if let Err(noticed) = (Plan { broken: Some(rule), ..sound }).run() {
            assert!(
                !noticed.why.contains("RANK-L1: "),
                "the rule's own lock was noticed: {noticed}"
            );
            println!("{}: noticed at seed {seed}: {}", rule.name(), noticed.why);
            return;
        }
    }
    panic!("{} can be broken for {SEEDS} seeds, and nobody notices", rule.name());
}

#[test]
fn r6_a_head_ahead_of_the_record_is_noticed_in_stock_mode() {
    let stock = Plan { stock: true, modes: Some(false), ..Plan::new(Level::Pool, 1) };
    is_noticed_in(stock, Sabotage::HeadAheadOfRecord.into());
}

#[test]
fn r1_joining_before_what_is_waited_for_is_noticed() {
    is_noticed(Sabotage::JoinFirst, None);
}

#[test]
fn r2_cutting_the_log_in_its_middle_is_noticed() {
    is_noticed(Sabotage::CutInTheMiddle, Weather::LogRotTwice);
}

#[test]
fn r2_taking_frames_only_that_are_whole_in_one_copy_is_noticed() {
    is_noticed(Sabotage::WholeFrameRecovery, Weather::LogRot);
}

#[test]
fn r2_a_log_of_one_copy_is_noticed() {
    is_noticed(Sabotage::OneLogCopy, Weather::LogRot);
}

#[test]
fn r3_reusing_what_somebody_reads_is_noticed() {
    is_noticed(Sabotage::IgnorePins, Weather::Calm);
}

#[test]
fn r5_a_recovery_that_reads_bases_is_noticed() {
    is_noticed(Sabotage::ReplayReadsBase, Weather::UberblockRot);
}

#[test]
fn r6_a_head_ahead_of_the_record_is_noticed() {
    // About one history in 800 notices it.
    is_noticed_from(1800, Level::Pool, Sabotage::HeadAheadOfRecord, Some(Weather::PowerCut));
}

#[test]
fn r6_reusing_the_log_before_the_uberblock_is_noticed() {
    is_noticed(Sabotage::ReuseLogAtOnce, Weather::UberblockRot);
}

#[test]
fn r12_trusting_the_second_flush_is_noticed() {
    is_noticed(Sabotage::TrustSecondFlush, Weather::FlushError);
}

#[test]
fn r13_taking_an_error_for_a_torn_write_is_noticed() {
    is_noticed(Sabotage::ErrorIsTorn, Weather::TailUnreadable);
}

#[test]
fn r13_taking_an_error_for_the_end_of_the_log_is_noticed() {
    is_noticed(Sabotage::ErrorEndsLog, Weather::LogUnreadable);
}

#[test]
fn o1_a_mount_that_does_not_flush_is_noticed() {
    is_noticed(Sabotage::NoFlushAtMount, Weather::Killed);
}

#[test]
fn r13_going_on_in_the_same_incarnation_is_noticed() {
    is_noticed(Sabotage::NoIncarnation, Weather::Misread);
}

#[test]
fn r14_a_last_batch_without_a_mark_is_noticed() {
    is_noticed(Sabotage::NoMark, Weather::TailRot);
}

#[test]
fn r15_discarding_what_is_freed_at_once_is_noticed() {
    is_noticed(Sabotage::DiscardEarly, Weather::PowerCut);
}

#[test]
fn r19_logging_an_allocation_when_it_is_claimed_is_noticed() {
    is_noticed(Sabotage::LogClaims, Weather::PowerCut);
}

#[test]
fn r31_joining_before_the_data_is_there_is_noticed() {
    is_noticed(Sabotage::JoinBeforeData, Weather::PowerCut);
}

#[test]
fn acknowledging_without_a_flush_is_noticed() {
    is_noticed(Sabotage::NoFlushBeforeAcknowledgement, Weather::PowerCut);
}

#[test]
fn using_frees_one_txg_too_early_is_noticed() {
    is_noticed(Sabotage::ReuseFreesAtOnce, Weather::PowerCutAtFlush);
}

#[test]
fn recording_a_root_before_its_nodes_are_flushed_is_noticed() {
    is_noticed(Sabotage::NoFlushBeforeRoot, Weather::PowerCutInSettling);
}

#[test]
fn not_verifying_the_tail_is_noticed() {
    is_noticed(Sabotage::TailNotVerified, Weather::PowerCutAtFlush);
}

/// What it leaves is sound to `check`. Who replays with other code tells at once, before the
/// model is asked; that alone sees nothing, or a change time that never was.
#[test]
fn a_replay_that_mixes_puts_is_noticed_by_the_second_opinion() {
    let broken = Some(Sabotage::ReplayMixesPuts.into());
    for seed in 1..=SEEDS {
        let plan = Plan { modes: Some(false), ..Plan::new(Level::Fs, seed) };
        let alone = Plan { broken, second_opinion: false, ..plan };
        if let Err(failure) = alone.run() {
            assert!(failure.why.contains("ctime"), "without the second opinion: {failure}");
        }
        if let Err(noticed) = (Plan { second_opinion: true, ..alone }).run() {
            assert!(noticed.why.contains("second opinion"), "{noticed}");
            let sound = Plan { broken: None, second_opinion: true, ..alone };
            sound.run().unwrap_or_else(|failure| panic!("{failure}"));
            return;
        }
    }
    panic!("ReplayMixesPuts can be broken for {SEEDS} seeds, and nobody notices");
}

#[test]
fn recording_that_a_map_could_not_be_read_is_noticed() {
    is_noticed(Sabotage::QuarantineOnError, Weather::MapUnreadable);
}

#[test]
fn rest_r1_a_table_that_rests_with_edits_is_noticed() {
    is_noticed(Sabotage::RestWithEdits, None);
}

#[track_caller]
fn is_noticed_with_few_maps(rule: Sabotage) {
    let plan = Plan { few_maps: true, modes: Some(false), ..Plan::new(Level::Pool, 1) };
    is_noticed_in(plan, rule.into());
}

#[test]
fn frees_beside_a_map_that_its_load_forgets_are_noticed() {
    is_noticed_with_few_maps(Sabotage::ForgetNotedFrees);
}

#[test]
fn changes_that_come_while_a_map_is_written_and_no_delta_has_are_noticed() {
    is_noticed_with_few_maps(Sabotage::ForgetLateChanges);
}

#[test]
fn requests_that_are_granted_beside_maps_in_memory_are_noticed() {
    is_noticed_with_few_maps(Sabotage::GrantUnloaded);
}

#[test]
fn p1_replacing_a_node_whose_list_cannot_be_read_is_noticed() {
    is_noticed(Sabotage::ForgetFragments, Weather::ListUnreadable);
}

#[test]
fn r32_a_log_that_does_not_wait_for_the_host_is_noticed() {
    is_noticed(Sabotage::LogDoesNotWait, Weather::HostFull);
}

#[test]
fn reading_attached_data_before_it_is_written_is_noticed() {
    is_noticed(Sabotage::ReadBeforeWritten, Weather::Calm);
}

#[test]
fn d2_clean_data_that_writes_and_frees_leave_in_memory_is_noticed() {
    is_noticed_from(140, Level::Fs, Sabotage::KeepOverwritten, None);
}

#[test]
fn e4_callers_that_no_round_wakes_are_noticed() {
    is_noticed_at(Level::Fs, Sabotage::ForgetEditWaiters, None);
}

// Through files a broken rule shows less often: what is read is mostly in memory, and what a crash
// takes was mostly not promised. These need the weather that they are about there, too.

#[test]
fn through_files_reusing_what_somebody_reads_is_noticed() {
    // Flushes with each commit use blocks again soon: about one history in 250 notices it.
    let (weather, modes) = (Some(Weather::Calm), Some(false));
    let flush = FlushPolicy::Even;
    is_noticed_in(
        Plan { weather, modes, flush, ..Plan::new(Level::Fs, 1) },
        Sabotage::IgnorePins.into(),
    );
}

#[test]
fn through_files_trusting_the_second_flush_is_noticed() {
    is_noticed_at(Level::Fs, Sabotage::TrustSecondFlush, Some(Weather::FlushError));
}

#[test]
fn through_files_not_verifying_the_tail_is_noticed() {
    is_noticed_at(Level::Fs, Sabotage::TailNotVerified, Some(Weather::PowerCutAtFlush));
}

#[test]
fn r9_numbers_that_are_given_out_again_are_noticed() {
    is_noticed_at(Level::Fs, Sabotage::ReissueIds, None);
}

#[test]
fn r21_writes_that_take_the_reserve_are_noticed() {
    is_noticed_at(Level::Fs, Sabotage::NoReserve, None);
}

#[test]
fn r21_holes_that_take_what_the_flusher_needs_are_noticed() {
    is_noticed_at(Level::Full, copyhold_fs::Sabotage::PunchInternally, None);
}

#[test]
fn r21_nodes_that_need_runs_are_noticed() {
    is_noticed(Sabotage::WholeNodes, None);
}

#[test]
fn r22_refusing_while_space_is_on_its_way_is_noticed() {
    is_noticed_at(Level::Fs, Sabotage::RefuseAtOnce, None);
}

#[test]
fn r22_refusing_before_deletions_are_freed_is_noticed() {
    is_noticed_at(Level::Full, Sabotage::RefuseBeforeDeletions, None);
}

#[test]
fn r30_sealed_tables_that_stay_are_noticed() {
    is_noticed_at(Level::Fs, Sabotage::KeepSealed, None);
}

#[test]
fn growth_that_no_label_names_is_noticed() {
    for level in [Level::Pool, Level::Fs] {
        let plan = Plan { grows: true, modes: Some(false), ..Plan::new(level, 1) };
        is_noticed_in(plan, Sabotage::GrowWithoutLabels.into());
    }
}

// Rules of tenants: these histories snapshot, share and delete, and know who pays.

#[track_caller]
fn is_noticed_among_tenants(rule: OfTenants) {
    is_noticed_at(Level::Fs, rule, None);
}

#[test]
fn r4_deciding_before_what_is_decided_is_applied_is_noticed() {
    // About one history in 1000 notices it.
    is_noticed_from(1270, Level::Fs, OfTenants::DecideEarly, Some(Weather::Calm));
}

#[test]
fn r16_siblings_that_do_not_see_what_the_other_drops_are_noticed() {
    is_noticed_among_tenants(OfTenants::BlindBuries);
}

#[test]
fn r17_deletions_of_one_family_at_the_same_time_are_noticed() {
    is_noticed_among_tenants(OfTenants::DeleteTogether);
}

#[test]
fn r18_walking_what_is_not_settled_is_noticed() {
    is_noticed_among_tenants(OfTenants::WalkUnsettled);
}

#[test]
fn r21_releases_that_come_to_more_than_their_credit_are_noticed() {
    is_noticed_at(Level::Full, OfTenants::IgnoreCredit, None);
}

#[test]
fn r23_limits_that_are_not_looked_at_are_noticed() {
    is_noticed_among_tenants(OfTenants::IgnoreLimits);
}

#[test]
fn r23_an_overdraft_that_follows_the_usage_is_noticed() {
    is_noticed_at(Level::Rogue, OfTenants::FeedOverdraft, None);
}

#[test]
fn r23_tombstones_that_a_rollback_loses_are_noticed() {
    is_noticed_at(Level::Rogue, OfTenants::LoseTombstones, None);
}

#[test]
fn r23_layers_that_each_snapshot_merges_are_noticed() {
    is_noticed_at(Level::Rogue, Sabotage::MergeShared, None);
}

#[test]
fn r23_a_reflink_that_asks_no_limit_is_noticed() {
    is_noticed_at(Level::Rogue, OfFiles::ShareUnasked, None);
}

#[test]
fn r23_a_reserve_that_a_rollback_loses_is_noticed() {
    is_noticed_among_tenants(OfTenants::LoseReserve);
}

#[test]
fn r24_usage_of_another_txg_is_noticed() {
    is_noticed_among_tenants(OfTenants::LateUsage);
}

#[test]
fn r25_writing_with_an_epoch_from_before_quotas_is_noticed() {
    is_noticed_among_tenants(OfTenants::KeepEpoch);
}

#[test]
fn r26_rows_of_usage_that_stay_are_noticed() {
    is_noticed_among_tenants(OfTenants::KeepRows);
}

#[test]
fn r27_deadlists_in_no_canonical_form_are_noticed() {
    is_noticed_among_tenants(OfTenants::SplitSegments);
}

#[test]
fn r29_tables_in_high_piles_are_noticed() {
    // About one history in 1,000 notices it.
    is_noticed_from(3320, Level::Fs, OfTenants::DeepForks, None);
}

#[test]
fn r42_an_heir_that_is_told_of_after_the_deletion_is_noticed() {
    is_noticed_among_tenants(OfTenants::HeirLater);
}

#[test]
fn r44_a_reflink_that_is_not_counted_is_noticed() {
    is_noticed_among_tenants(OfTenants::UncountedShares);
}

#[test]
fn limits_of_memory_that_a_rollback_loses_are_noticed() {
    is_noticed_among_tenants(OfTenants::LoseMemoryLimits);
}

// Rules of checksums beside the blocks, on a device with protection information.

#[track_caller]
fn is_noticed_on_protected(rule: Sabotage, weather: Option<Weather>) {
    let protection = Some("4096+16:64b".parse().expect("a format"));
    let plan = Plan { weather, protection, modes: Some(true), ..Plan::new(Level::Fs, 1) };
    is_noticed_in(plan, rule.into());
}

#[test]
fn r8_guards_that_are_not_flushed_before_their_batch_are_noticed() {
    is_noticed_on_protected(Sabotage::NoFlushBeforeGuard, Some(Weather::PowerCutAtWrite));
}

#[test]
fn memory_that_changed_is_noticed() {
    is_noticed_on_protected(Sabotage::ChangeMemory, None);
}

#[test]
fn b1_blocks_without_birth_are_noticed() {
    is_noticed_on_protected(Sabotage::NoBirth, Some(Weather::Calm));
}

#[test]
fn an_escape_that_is_accepted_is_noticed() {
    is_noticed_on_protected(Sabotage::AcceptEscape, Some(Weather::Calm));
}

// Rules of files.

#[track_caller]
fn is_noticed_in_files(rule: OfFiles) {
    is_noticed_at(Level::Fs, rule, None);
}

#[test]
fn taking_files_in_use_for_leftovers_is_noticed() {
    is_noticed_in_files(OfFiles::ReplayInUse);
}

#[test]
fn r33_batches_that_install_what_was_cut_off_meanwhile_are_noticed() {
    is_noticed_at(Level::Fs, OfFiles::InstallStale, Some(Weather::Calm));
}

#[test]
fn d8_a_close_that_leaves_a_truncation_in_memory_is_noticed() {
    is_noticed_in_files(OfFiles::ForgetEmptied);
}

#[test]
fn dirty_data_that_is_charged_twice_is_noticed() {
    is_noticed_in_files(OfFiles::ChargeTwice);
}

#[test]
fn a_charge_that_is_never_ended_is_noticed() {
    is_noticed_in_files(OfFiles::LeakCharge);
}

#[test]
fn r35_what_a_cut_leaves_in_the_table_is_noticed() {
    is_noticed_in_files(OfFiles::KeepCuts);
}

#[test]
fn r35_renaming_over_a_name_before_the_data_is_written_is_noticed() {
    // About one history in 250 notices it.
    is_noticed_from(530, Level::Fs, OfFiles::RenameFirst, None);
}

#[test]
fn r37_a_snapshot_without_what_was_written_before_is_noticed() {
    is_noticed_in_files(OfFiles::SnapshotFirst);
}

#[test]
fn r38_files_without_a_name_that_stay_in_snapshots_are_noticed() {
    is_noticed_in_files(OfFiles::KeepOrphans);
}

#[test]
fn a_copy_into_a_file_whose_flags_forbid_it_is_noticed() {
    is_noticed_in_files(OfFiles::CopyUnasked);
}

#[test]
fn privileges_that_a_change_of_content_leaves_are_noticed() {
    is_noticed_in_files(OfFiles::KeepPrivileges);
}

#[test]
fn a_copy_to_a_synchronous_file_that_is_not_synced_is_noticed() {
    is_noticed_in_files(OfFiles::CopyUnsynced);
}

#[test]
fn write_back_that_is_refused_by_later_flags_is_noticed() {
    is_noticed_in_files(OfFiles::JudgeAgain);
}

#[test]
fn a_copy_up_that_loses_privileges_is_noticed() {
    is_noticed_in_files(OfFiles::StripCopyUp);
}

#[test]
fn a_copy_up_that_keeps_privileges_for_ever_is_noticed() {
    is_noticed_in_files(OfFiles::CopyUpForEver);
}

#[test]
fn long_acls_that_are_refused_are_noticed() {
    is_noticed_in_files(OfFiles::RefuseLongAcls);
}

#[test]
fn the_removal_of_an_absent_acl_that_fails_is_noticed() {
    is_noticed_in_files(OfFiles::RefuseAbsentAcls);
}

#[test]
fn a_mode_that_leaves_its_acl_behind_is_noticed() {
    is_noticed_in_files(OfFiles::ChmodAlone);
}

#[test]
fn files_that_stay_when_all_look_ups_are_given_back_are_noticed() {
    is_noticed_in_files(OfFiles::ForgetNothing);
}

#[test]
fn a_name_that_stays_absent_when_a_file_gets_it_is_noticed() {
    is_noticed_at(Level::Fs, OfFiles::KeepAbsent, None);
}

#[test]
fn an_entry_that_ends_although_the_front_end_knows_its_name_again_is_noticed() {
    is_noticed_at(Level::Fs, OfFiles::ForgetAsked, None);
}
