"""The solvers, one in each module. `distsms.optim.solvers.base` defines their interface."""
