//! Files: items, names, links, contents.

use copyhold_check::{Problem, Severity};
use copyhold_device::sim::SimImage;
use copyhold_format::item::{
    self, ACCESS_ACL, AclEntry, DIRENT, DirBucket, EPOCH, Extent, GROUP_OBJ, InodeFlags, InodeItem,
    MASK, NAMED_USER, OTHER, SUBVOL, SubvolItem, USER_OBJ, XATTR, XATTR_SHORT_MAX, XATTR_VALUE,
    XATTR_VALUE_PIECE, XattrBucket, XattrValue, dirent_bucket, encode_acl, extent_key, inode_key,
    xattr_bucket, xattr_piece,
};
use copyhold_pool::{IdSpace, Pool, Transaction};
use copyhold_types::{EpochId, InodeNo, Key, Kind, SubvolId};

use super::pool::{
    ATTRIBUTES, DIR, Files, HASH, LINK, LONG, MANY, ORPHAN, RESERVED, SHORT, TABLE, TINY, changed,
    inode, kinds, report, rot, sound,
};

/// The kinds of damage after a change, the worst severity, and all texts.
fn after(change: impl AsyncFnOnce(&Files)) -> (Vec<&'static str>, Severity, String) {
    let image = changed(&sound(), change);
    let report = report(&image);
    let texts: Vec<String> = report
        .findings
        .iter()
        .map(|finding| {
            let paths = finding.files.iter().filter_map(|file| file.path.clone());
            format!(
                "{} [{}] {}",
                finding.what,
                paths.collect::<Vec<_>>().join(" "),
                finding.meaning
            )
        })
        .collect();
    (kinds(&image), report.worst().expect("something is found"), texts.join("\n"))
}

#[test]
fn too_many_links_leak_and_too_few_lose() {
    let (kinds, worst, text) =
        after(async |files| files.change_inode(SHORT, |item| item.nlink = 3).await);
    assert_eq!((kinds, worst), (vec!["links"], Severity::Leak));
    assert!(text.contains("is 3, and should be 2 [/dir/"), "{text}");

    let (kinds, worst, text) =
        after(async |files| files.change_inode(SHORT, |item| item.nlink = 1).await);
    assert_eq!((kinds, worst), (vec!["links"], Severity::AtRisk));
    assert!(text.contains("removing one of its names removes the file"), "{text}");

    let (kinds, ..) = after(async |files| files.change_inode(MANY, |item| item.nlink = 9).await);
    assert_eq!(kinds, ["links"]);
}

#[test]
fn a_count_of_links_that_is_saturated_tells_nothing_of_a_directory() {
    let saturated = InodeItem::LINKS_SATURATED;
    let image = changed(&sound(), async |files| {
        files.change_inode(DIR, |item| item.nlink = saturated).await;
    });
    assert!(report(&image).findings.is_empty(), "{:#?}", report(&image).findings);
    let (kinds, ..) =
        after(async |files| files.change_inode(SHORT, |item| item.nlink = saturated).await);
    assert_eq!(kinds, ["links"], "another file has as many as names");
}

#[test]
fn an_entry_to_a_missing_inode_is_told_with_its_name() {
    let (kinds, worst, text) = after(async |files| {
        files.put_name(DIR, b"ghost", 8, InodeNo(3000)).await;
        files.change_inode(DIR, |item| item.size += 1).await;
    });
    assert_eq!((kinds, worst), (vec!["missing-inode"], Severity::DataLost));
    assert!(text.contains("\"ghost\"") && text.contains("[/dir]"), "{text}");
}

#[test]
fn an_entry_of_another_type_or_in_another_bucket_is_told() {
    let (kinds, _, text) = after(async |files| {
        let key = Key::new(1, DIRENT, dirent_bucket(&HASH, b"long"));
        let bucket = DirBucket::EMPTY.with(10, LONG, b"long").unwrap();
        files.put(key, &bucket).await;
    });
    assert_eq!(kinds, ["entry"]);
    assert!(text.contains("another type"), "{text}");

    let (kinds, _, text) = after(async |files| {
        files.delete(Key::new(1, DIRENT, dirent_bucket(&HASH, b"long"))).await;
        let bucket = DirBucket::EMPTY.with(8, LONG, b"long").unwrap();
        files.put(Key::new(1, DIRENT, 0x5500), &bucket).await;
    });
    assert_eq!(kinds, ["entry"]);
    assert!(text.contains("another name's hash"), "{text}");
}

#[test]
fn a_file_without_a_name_is_told() {
    let (kinds, worst, _) = after(async |files| {
        files.delete(Key::new(1, DIRENT, dirent_bucket(&HASH, b"long"))).await;
        files.change_inode(InodeNo::ROOT, |item| item.size -= 1).await;
    });
    assert_eq!((kinds, worst), (vec!["unreachable"], Severity::DataLost));
}

#[test]
fn orphans_are_on_the_list_and_only_they_are() {
    let (kinds, worst, _) = after(async |files| files.delete(item::orphan_key(ORPHAN)).await);
    assert_eq!((kinds, worst), (vec!["unlisted-orphan"], Severity::Leak));

    let (kinds, worst, text) = after(async |files| {
        files.put(item::orphan_key(LONG), &[]).await;
        files.put(item::truncate_key(InodeNo(3000)), &item::encode_truncate(0)).await;
    });
    assert_eq!((kinds, worst), (vec!["listed"], Severity::Cosmetic));
    assert!(text.contains("but has links") && text.contains("but does not exist"), "{text}");
}

#[test]
fn a_directory_is_in_one_place_and_not_in_itself() {
    let (kinds, ..) = after(async |files| files.change_inode(DIR, |item| item.parent = MANY).await);
    assert_eq!(kinds, ["parent"]);

    let (kinds, _, text) = after(async |files| {
        // /dir moves into itself.
        files.delete(Key::new(1, DIRENT, dirent_bucket(&HASH, b"dir"))).await;
        files.change_inode(InodeNo::ROOT, |item| (item.size, item.nlink) = (6, 3)).await;
        files.put_name(DIR, b"dir", 4, DIR).await;
        files.change_inode(DIR, |item| (item.size, item.nlink, item.parent) = (3, 3, DIR)).await;
    });
    assert_eq!(kinds, ["unreachable"]);
    assert!(text.contains("in a circle"), "{text}");

    let (kinds, ..) = after(async |files| {
        files.put_name(MANY, b"again", 4, DIR).await;
        files.change_inode(MANY, |item| (item.size, item.nlink) = (item.size + 1, 3)).await;
    });
    assert_eq!(kinds, ["directory-names"]);
}

#[test]
fn counts_of_an_inode_that_are_wrong_are_told() {
    let (kinds, worst, text) = after(async |files| {
        files.change_inode(LONG, |item| item.allocated += 4096).await;
        files.change_inode(DIR, |item| item.size = 9).await;
        files.change_inode(LINK, |item| item.size = 9).await;
        files.change_inode(ATTRIBUTES, |item| item.xattrs = 9).await;
    });
    assert_eq!((kinds, worst), (vec!["field"], Severity::Cosmetic));
    for what in ["allocated size", "number of entries", "its size is", "number of attributes"] {
        assert!(text.contains(what), "{what} in {text}");
    }
}

#[test]
fn an_inode_that_is_gone_or_means_nothing_is_told() {
    let (kinds, worst, _) = after(async |files| files.delete(inode_key(SHORT)).await);
    assert_eq!((kinds, worst), (vec!["missing-inode", "no-inode"], Severity::DataLost));

    let (kinds, worst, text) = after(async |files| files.put(inode_key(SHORT), &[1; 112]).await);
    assert_eq!((kinds, worst), (vec!["item", "missing-inode"], Severity::DataLost));
    assert!(text.contains("the inode item of inode 4 of subvolume 1"), "{text}");
}

#[test]
fn a_symlink_without_a_target_and_a_tiny_file_without_content_are_told() {
    let (kinds, ..) = after(async |files| files.delete(item::symlink_key(LINK)).await);
    assert_eq!(kinds, ["no-target"]);
    let (kinds, ..) = after(async |files| files.delete(item::inline_key(TINY)).await);
    assert_eq!(kinds, ["no-inline"]);
    let (kinds, ..) = after(async |files| files.put(item::inline_key(LONG), b"x").await);
    assert_eq!(kinds, ["misplaced"]);
}

#[test]
fn attributes_that_are_not_whole_are_told() {
    let piece = async |files: &Files| {
        let from = Key::new(ATTRIBUTES.0, XATTR_VALUE, 0);
        let to = Key::new(ATTRIBUTES.0, XATTR_VALUE, u64::MAX);
        files.pool.range(TABLE, from, to, 9).await.unwrap()[1].0
    };
    let (kinds, worst, text) = after(async |files| files.delete(piece(files).await).await);
    assert_eq!((kinds, worst), (vec!["xattr"], Severity::DataLost));
    assert!(text.contains("\"user.long\"") && text.contains("[/attributes]"), "{text}");

    let (kinds, ..) = after(async |files| files.put(piece(files).await, &[1; 9]).await);
    assert_eq!(kinds, ["xattr"]);

    let (kinds, ..) = after(async |files| {
        let from = Key::new(ATTRIBUTES.0, XATTR, 0);
        let to = Key::new(ATTRIBUTES.0, XATTR, u64::MAX);
        let (key, value) = files.pool.range(TABLE, from, to, 1).await.unwrap().remove(0);
        files.delete(key).await;
        files.put(Key { offset: key.offset ^ 0x10000, ..key }, &value).await;
    });
    assert!(kinds.contains(&"xattr"), "{kinds:?}");
}

#[test]
fn an_acl_that_the_inode_does_not_know_of_is_told() {
    let (kinds, _, text) = after(async |files| {
        files.change_inode(LONG, |item| item.has.set(InodeFlags::DEFAULT_ACL, true)).await;
    });
    assert_eq!(kinds, ["xattr"]);
    assert!(text.contains("\"system.posix_acl_default\""), "{text}");
}

/// An ACL of `/long`, which has mode 644, with a mask and entries for so many users.
fn acl(mask: u16, users: u32) -> Vec<u8> {
    let entry = |tag, perm, id| AclEntry { tag, perm, id };
    let named = (0..users).map(|uid| entry(NAMED_USER, 6, uid));
    let owner = entry(USER_OBJ, 6, u32::MAX);
    let rest = [(GROUP_OBJ, 6), (MASK, mask), (OTHER, 4)];
    let rest = rest.into_iter().map(|(tag, perm)| entry(tag, perm, u32::MAX));
    encode_acl([owner].into_iter().chain(named).chain(rest))
}

async fn put_acl(files: &Files, value: &[u8]) {
    let bucket = xattr_bucket(&HASH, ACCESS_ACL);
    let stored = match value.len() > XATTR_SHORT_MAX {
        true => XattrValue::Pieces(value.len()),
        false => XattrValue::Here(value),
    };
    let (bytes, index) = XattrBucket::EMPTY.with(ACCESS_ACL, stored).unwrap();
    files.put(Key::new(LONG.0, XATTR, bucket), &bytes).await;
    for (n, piece) in value.chunks(XATTR_VALUE_PIECE).enumerate().take(stored.pieces()) {
        files.put(xattr_piece(LONG, bucket, index, n), piece).await;
    }
    files
        .change_inode(LONG, |item| {
            item.has.set(InodeFlags::ACCESS_ACL, true);
            item.xattrs = 1;
        })
        .await;
}

#[test]
fn an_acl_that_contradicts_the_mode_or_means_nothing_is_told() {
    for users in [1, 900] {
        let image = changed(&sound(), async |files| put_acl(files, &acl(4, users)).await);
        assert_eq!(report(&image).findings, [], "with {users} users");

        let (kinds, worst, text) = after(async |files| put_acl(files, &acl(6, users)).await);
        assert_eq!((kinds, worst), (vec!["acl"], Severity::DataLost));
        assert!(text.contains("664") && text.contains("644") && text.contains("/long"), "{text}");

        let (kinds, worst, text) = after(async |files| {
            let mut bytes = acl(4, users);
            bytes[12] = 0x77;
            put_acl(files, &bytes).await;
        });
        assert_eq!((kinds, worst), (vec!["acl"], Severity::DataLost));
        assert!(text.contains("ACL has tag"), "{text}");
    }
}

#[test]
fn extents_that_overlap_cross_or_come_from_the_future_are_told() {
    let extent =
        async |files: &Files| Extent::parse(&files.get(extent_key(LONG, 64)).await).unwrap();
    let (kinds, _, text) = after(async |files| {
        let extent = extent(files).await;
        files.delete(extent_key(LONG, 64)).await;
        files.put(extent_key(LONG, 63), &extent.encode()).await;
    });
    assert_eq!(kinds, ["extent"]);
    assert!(text.contains("overlaps"), "{text}");

    let (kinds, _, text) = after(async |files| {
        let extent = extent(files).await;
        files.delete(extent_key(LONG, 64)).await;
        files.put(extent_key(LONG, 93), &extent.encode()).await;
    });
    assert_eq!(kinds, ["extent"]);
    assert!(text.contains("cross a multiple of 32"), "{text}");

    let (kinds, _, text) = after(async |files| {
        let mut extent = extent(files).await;
        (extent.pointer.epoch, extent.pointer.origin) = (EpochId(50), EpochId(50));
        files.put(extent_key(LONG, 64), &extent.encode()).await;
    });
    assert_eq!(kinds, ["extent"]);
    assert!(text.contains("of epoch 50"), "{text}");

    let (kinds, ..) = after(async |files| files.put(extent_key(RESERVED, 0), &[1; 5]).await);
    assert!(kinds.contains(&"item"), "{kinds:?}");
}

#[test]
fn a_rotten_block_of_data_is_told_with_file_and_offset() {
    let mut image: SimImage = sound();
    let mut at = 0;
    changed(&image, async |files| {
        let extent = Extent::parse(&files.get(extent_key(LONG, 32)).await).unwrap();
        at = extent.pointer.run.addr.block();
    });
    rot(&mut image, at + 5);
    rot(&mut image, at + 6);
    let report = report(&image);
    assert_eq!((kinds(&image), report.worst()), (vec!["data"], Some(Severity::DataLost)));
    let [Problem::Data { block: 37, blocks: 2, .. }] = report.problems().collect::<Vec<_>>()[..]
    else {
        panic!("{report:?}");
    };
    assert_eq!(report.findings[0].files[0].path.as_deref(), Some("/long"));
    assert!(report.findings[0].meaning.contains("8 KiB"));
}

#[test]
fn numbers_that_were_never_given_out_are_told() {
    let (kinds, worst, _) = after(async |files| {
        let far = InodeNo(1 << 20);
        files.put(inode_key(far), &inode(8, 1).encode()).await;
        files.put_name(DIR, b"far", 8, far).await;
        files.change_inode(DIR, |item| item.size += 1).await;
    });
    assert_eq!((kinds, worst), (vec!["id-mark"], Severity::AtRisk));

    let (kinds, ..) = after(async |files| {
        let mut tx = Transaction::new();
        tx.put(Pool::SYSTEM, IdSpace::Table.key(), &1u64.to_le_bytes()[..]);
        files.apply(tx).await;
    });
    assert_eq!(kinds, ["id-mark"]);
}

#[test]
fn a_subvolume_without_record_or_epoch_is_told() {
    let key = Key::new(SubvolId::ROOT.0.into(), SUBVOL, 0);
    let (kinds, worst, _) = after(async |files| {
        let mut tx = Transaction::new();
        tx.delete(Pool::SYSTEM, key);
        files.apply(tx).await;
    });
    assert!(kinds.contains(&"no-subvolume") && kinds.contains(&"unknown-table"), "{kinds:?}");
    assert_eq!(worst, Severity::Fatal);

    let (kinds, ..) = after(async |files| {
        let mut tx = Transaction::new();
        tx.put(Pool::SYSTEM, key, &[1; SubvolItem::BYTES][..]);
        files.apply(tx).await;
    });
    assert!(kinds.contains(&"subvolume"), "{kinds:?}");

    let (kinds, ..) = after(async |files| {
        let mut tx = Transaction::new();
        tx.delete(Pool::SYSTEM, Key::new(1, EPOCH, 0));
        files.apply(tx).await;
    });
    assert_eq!(kinds, ["epoch"]);
}

#[test]
fn items_that_mean_nothing_are_told_and_left_alone() {
    let (kinds, worst, _) = after(async |files| {
        files.put(Key::new(SHORT.0, Kind(99), 0), b"?").await;
        files.put(Key::new(0, Kind(99), 0), b"?").await;
        let mut tx = Transaction::new();
        tx.put(Pool::SYSTEM, Key::new(5, Kind(99), 0), &b"?"[..]);
        files.apply(tx).await;
    });
    assert_eq!((kinds, worst), (vec!["unknown-item"], Severity::Cosmetic));
}
