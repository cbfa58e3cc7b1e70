//! A pool that is smaller than its device.

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_pool::{CreateOptions, OpenOptions, Pool, PoolError, read_labels};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::DeviceId;

const DEVICE: u64 = 8192;

fn on<T>(image: &SimImage, task: impl AsyncFnOnce(Rt, DynDevice) -> T) -> (T, SimImage) {
    let rt = SeededRuntime::new(1);
    let config = SimConfig::new(1);
    let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image.clone(), config);
    let device: Arc<SimDevice> = disk.clone();
    let answer = rt.block_on(task(rt.clone() as Rt, device));
    (answer, disk.image())
}

fn made(image: &SimImage, blocks: Option<u64>) -> (Result<Label, PoolError>, SimImage) {
    let options = CreateOptions { blocks, log_bytes: Some(1 << 20), ..CreateOptions::default() };
    on(image, async |rt, device| Pool::create(&rt, &device, &options).await)
}

fn opens(image: &SimImage) -> u64 {
    on(image, async |rt, device| {
        let pool = Pool::open(rt, device.clone(), OpenOptions::default()).await.unwrap();
        pool.close().await.unwrap();
        read_labels(&device).await.unwrap().label.blocks
    })
    .0
}

#[test]
fn either_label_is_enough_although_neither_stands_at_the_devices_end() {
    for blocks in [2048, 5000, DEVICE - AREA_BLOCKS, DEVICE - 1] {
        let (label, image) = made(&SimImage::empty(DEVICE), Some(blocks));
        let label = label.unwrap();
        assert_eq!(label.blocks, blocks.min(DEVICE - AREA_BLOCKS));
        assert_eq!(opens(&image), label.blocks);
        for at in Label::areas(label.blocks) {
            let mut image = image.clone();
            image.corrupt(at, |bytes| bytes[20] ^= 1);
            assert_eq!(opens(&image), label.blocks, "without the label at {at}");
        }
    }
}

#[test]
fn what_stood_at_the_devices_end_does_not_come_back() {
    let (_, image) = made(&SimImage::empty(DEVICE), None);
    let (label, mut image) = made(&image, Some(2048));
    image.corrupt(0, |bytes| bytes[20] ^= 1);
    let found = on(&image, async |_, device| read_labels(&device).await.unwrap()).0.label;
    assert_eq!(found.pool, label.unwrap().pool);
}

#[test]
fn no_pool_is_larger_than_its_device_or_too_small() {
    for blocks in [DEVICE + 1, 2047] {
        let refused = made(&SimImage::empty(DEVICE), Some(blocks)).0;
        assert!(matches!(refused, Err(PoolError::TooSmall { .. })), "{refused:?}");
    }
}
