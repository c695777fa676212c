"""What tests share: how the suite is divided, scenes, clients that stop when they are told to."""
