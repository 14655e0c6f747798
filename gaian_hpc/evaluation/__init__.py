"""Rendering and measuring views of a trained scene."""
