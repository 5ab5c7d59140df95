"""A U-Net of diffusers, sampled from, with memprof: docs/guides/diffusers.md."""

import torch
from diffusers import DDPMScheduler, UNet2DModel

import memprof

small = {"block_out_channels": (32,), "layers_per_block": 1, "norm_num_groups": 8}
blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
unet = UNet2DModel(sample_size=16, **small, **blocks)
device = "cuda" if torch.cuda.is_available() else "cpu"
unet.to(device).compile(backend="memprof")
scheduler = DDPMScheduler(num_train_timesteps=100)
scheduler.set_timesteps(4)

with memprof.profile("run.memprof", steps="steps.jsonl") as session, torch.no_grad():
    image = torch.randn(2, 3, 16, 16, device=device)
    for t in scheduler.timesteps:
        torch.compiler.cudagraph_mark_step_begin()
        noise = unet(image, t).sample
        image = scheduler.step(noise, t, image).prev_sample
session.report()
