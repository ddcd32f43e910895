"""The risks that are minimized. `distsms.losses.base` explains their interface and the letters used."""
