"""Proves a node and this image before a job may use them."""
