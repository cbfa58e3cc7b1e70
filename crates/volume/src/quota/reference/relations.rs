//! Section 5: groups, relations, inheritance.

use super::*;

#[test]
fn wrong_relations_are_refused_as_btrfs_refuses_them() {
    let mut pool = Pool::on();
    let (one, two) = (pool.group("1/100", &[]), pool.group("2/100", &[]));
    let missing = group("1/7");
    assert_eq!(code(pool.ledger.assign(two, one)), "EINVAL");
    assert_eq!(code(pool.ledger.assign(one, one)), "EINVAL");
    assert_eq!(code(pool.ledger.assign(at(A), at(B))), "EINVAL");
    assert_eq!(code(pool.ledger.assign(missing, two)), "EINVAL");
    assert_eq!(code(pool.ledger.assign(at(A), missing)), "EINVAL");
    pool.done(pool.ledger.assign(at(A), one));
    assert_eq!(code(pool.ledger.assign(at(A), one)), "EEXIST");
    assert_eq!(code(pool.ledger.remove(at(B), one)), "ENOENT");
    assert_eq!(code(pool.ledger.remove(missing, two)), "ENOENT");
    assert_eq!(code(pool.ledger.destroy(one)), "EBUSY");
    assert_eq!(code(pool.ledger.destroy(at(A))), "EBUSY");
    assert_eq!(code(pool.ledger.destroy(missing)), "ENOENT");
    assert_eq!(code(pool.ledger.create(group("0/77"))), "EINVAL");
    assert_eq!(code(pool.ledger.create(one)), "EEXIST");
    assert_eq!(code(pool.ledger.limit(missing, LimitKind::Referenced, Some(1))), "ENOENT");
    let nonsense = pool.ledger.limit(one, LimitKind::Referenced, Some(u64::MAX - 1));
    assert_eq!(code(nonsense), "EINVAL");
}

#[test]
fn a_group_without_members_can_be_destroyed_and_leaves_its_own_groups() {
    let mut pool = Pool::on();
    let one = pool.group("1/1", &["0/2"]);
    let two = pool.group("2/1", &["1/1"]);
    pool.done(pool.ledger.remove(at(A), one));
    pool.done(pool.ledger.destroy(one));
    assert_eq!(pool.ledger.show_group(two).unwrap().members, vec![]);
    pool.done(pool.ledger.destroy(two));
    assert_eq!(pool.disk.len(), 1, "the status");
}

#[test]
fn a_group_uses_what_its_members_do_when_they_come_and_when_they_go() {
    let mut pool = Pool::on();
    let extent = pool.write(A, 3 * MIB);
    pool.write(B, 4 * MIB);
    let one = pool.group("1/1", &["0/2", "0/3"]);
    assert_eq!(pool.used(one), 7 * MIB);
    pool.free(extent);
    assert_eq!(pool.used(one), 4 * MIB);
    pool.done(pool.ledger.remove(at(B), one));
    assert_eq!(pool.used(one), 0);
}

#[test]
fn a_late_diamond_counts_once_at_its_top_where_btrfs_counts_twice() {
    let mut pool = Pool::on();
    pool.write(A, 4 * MIB);
    let top = pool.group("2/1", &[]);
    for side in ["1/1", "1/2"] {
        let side = pool.group(side, &[]);
        pool.done(pool.ledger.assign(side, top));
        pool.done(pool.ledger.assign(at(A), side));
    }
    assert_eq!(pool.used(top), 4 * MIB);
    pool.done(pool.ledger.remove(at(A), group("1/1")));
    assert_eq!((pool.used(top), pool.used(group("1/1"))), (4 * MIB, 0));
    pool.done(pool.ledger.remove(at(A), group("1/2")));
    assert_eq!(pool.used(top), 0);
}

#[test]
fn a_new_subvolume_joins_the_groups_of_whoever_holds_its_entry_and_not_of_its_origin() {
    let mut pool = Pool::on();
    let one = pool.group("1/100", &["0/2"]);
    pool.limit(at(A), 100 * MIB);
    pool.snapshot(A, S, A).unwrap();
    pool.snapshot(A, T, ROOT).unwrap();
    let shown = |id| pool.ledger.show_group(at(id)).unwrap();
    assert_eq!(shown(S).parents, vec![one]);
    assert_eq!(shown(T).parents, vec![]);
    assert_eq!(shown(S).limits, Limits::default(), "limits of its own are not copied");
}

#[test]
fn groups_that_are_asked_for_are_checked_before_anything_is_made() {
    let mut pool = Pool::on();
    let two = pool.group("2/1", &[]);
    let one = pool.group("1/1", &[]);
    pool.done(pool.ledger.assign(one, two));
    let wrong = |id| Inherit::Groups(vec![one, id]);
    assert_eq!(code(pool.try_create(S, ROOT, wrong(at(A)))), "EINVAL");
    assert_eq!(code(pool.try_create(S, ROOT, wrong(group("1/9")))), "ENOENT");
    assert_eq!(code(pool.ledger.show_group(at(S))), "ENOENT");
    pool.try_create(S, ROOT, Inherit::Groups(vec![one, one])).unwrap();
    pool.write(S, MIB);
    // The regression of a snapshot into an inner group: no ghosts in between or above.
    assert_eq!((pool.used(one), pool.used(two)), (MIB, MIB));
    assert_eq!(code(pool.try_create(S, ROOT, Inherit::FromHolder)), "EEXIST");
}

#[test]
fn nobody_is_a_member_of_more_groups_than_one_transaction_can_say() {
    let mut pool = Pool::on();
    let ids: Vec<_> = (0..17).map(|id| group(&format!("1/{id}"))).collect();
    ids.iter().for_each(|id| pool.done(pool.ledger.create(*id)));
    let too_many = Inherit::Groups(ids.clone());
    assert_eq!(code(pool.try_create(S, ROOT, too_many)), "EMLINK");
    ids[..16].iter().for_each(|id| pool.done(pool.ledger.assign(at(A), *id)));
    assert_eq!(code(pool.ledger.assign(at(A), ids[16])), "EMLINK");
    pool.create(S, A);
    assert_eq!(pool.ledger.show_group(at(S)).unwrap().parents.len(), 16);
}

#[test]
fn a_child_cannot_escape_the_limit_of_the_subvolume_that_holds_it() {
    let mut pool = Pool::on();
    pool.limit(at(A), MIB + 2 * RECORDS);
    pool.create(S, A);
    pool.create(T, S);
    let extent = pool.write(T, MIB);
    assert_eq!(pool.refused(T, 4096).group, at(A));
    assert_eq!(pool.refused(A, 4096).used, MIB + 2 * RECORDS);
    assert_eq!(pool.ledger.available(SubvolId(T)), Some(0));
    assert_eq!((pool.data(A), pool.data(S), pool.data(T)), (0, 0, MIB), "and A is not charged");
    pool.free(extent);
    pool.write(A, MIB);
}

#[test]
fn subvolumes_inside_one_have_a_number_and_cost_their_records() {
    let mut pool = Pool::on();
    pool.limit(at(A), 3 * RECORDS + Request::LEAF);
    pool.done(pool.ledger.limit(at(A), LimitKind::Subvolumes, Some(2)));
    pool.create(S, A);
    pool.create(T, S);
    let shown = |pool: &Pool| pool.ledger.show_group(at(A)).unwrap().subvolumes;
    assert_eq!(
        (shown(&pool), pool.ledger.available(SubvolId(A))),
        (2, Some(RECORDS + Request::LEAF))
    );
    let refused = pool.try_create(9, A, Inherit::FromHolder).unwrap_err();
    assert!(refused.to_string().contains("1 subvolumes wanted, 2 of 2 there"), "{refused}");
    assert_eq!(code(pool.ledger.show_group(at(9))), "ENOENT");
    assert_eq!(code(pool.snapshot(B, 9, T)), "EDQUOT", "a snapshot is a subvolume more");
    pool.sync();
    assert_eq!(pool.crash(), vec![]);
    assert_eq!(
        (shown(&pool), pool.ledger.available(SubvolId(A))),
        (2, Some(RECORDS + Request::LEAF))
    );
    pool.delete(T, None).unwrap();
    pool.done(pool.ledger.limit(at(A), LimitKind::Subvolumes, None));
    pool.create(9, A);
    pool.create(10, S);
    assert_eq!(code(pool.try_create(11, S, Inherit::FromHolder)), "EDQUOT", "no bytes are left");
    assert_eq!(shown(&pool), 3);
    // Of a group, its members.
    let all = pool.group("1/1", &["0/2", "0/3"]);
    assert_eq!(pool.ledger.show_group(all).unwrap().subvolumes, 2);
}

#[test]
fn a_limit_of_the_root_subvolume_is_for_its_own_files() {
    let mut pool = Pool::on();
    pool.limit(at(ROOT), MIB);
    pool.write(A, 2 * MIB);
    assert_eq!(pool.ledger.available(SubvolId(A)), None);
    assert_eq!(pool.refused(ROOT, 2 * MIB).group, at(ROOT));
}

/// Looks at groups, to list so many of them in pages.
fn looks_of_pages(groups: usize) -> u64 {
    let mut pool = Pool::on();
    for n in 0..groups as u64 {
        pool.done(pool.ledger.create(GroupId::new(1, n).unwrap()));
    }
    let (before, mut after) = (pool.ledger.looks(), GroupId::place(0));
    let mut listed = Vec::new();
    loop {
        let page = pool.ledger.show_behind(after, 100).unwrap();
        let Some(last) = page.last() else { break };
        after = last.id;
        listed.extend(page);
    }
    let looks = pool.ledger.looks() - before;
    assert_eq!(listed, pool.ledger.show().unwrap());
    // Three are subvolumes.
    assert_eq!((listed.len(), pool.ledger.shown().unwrap()), (groups + 3, groups + 3));
    looks
}

#[test]
fn a_list_in_pages_looks_at_each_group_once() {
    assert_eq!([1000, 2000].map(looks_of_pages), [1003, 2003]);
    let beyond = Pool::on().ledger.show_behind(GroupId::place(u64::MAX), 5);
    assert_eq!(beyond.unwrap(), vec![]);
}
